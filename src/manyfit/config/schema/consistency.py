"""Consistency checks between the fields of a config."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from manyfit.config.schema.run import FORMATS, Freeze, Run, Train, every_scheduler
from manyfit.config.typed import extensions
from manyfit.config.typed.cadence import Cadence, parse_cadences
from manyfit.config.typed.signatures import signature_of
from manyfit.config.typed.torch_facts import RATES
from manyfit.core.names import listing, nearest

RESERVED: Final = (
    "id",
    "row",
    "part",
    "target",
    "prediction",
    "confidence",
    "failed",
    "loss",
    "class",
    "step",
    "epoch",
    "time",
)
"""Columns of a report and keys of the log: reserved names that no metric can have."""


class Contradiction(NamedTuple):
    """A field that contradicts others."""

    path: tuple[str, ...]
    message: str
    expected: str = ""
    received: str = ""
    suggestion: str = ""


def contradictions(run: Run) -> Iterator[Contradiction]:
    """Yield everything in a config that has valid types but cannot be intended."""
    yield from _names(run)
    yield from _times(run)
    yield from _metrics(run)
    yield from _directions(run)
    yield from _heads(run)
    yield from _optimizers(run)
    yield from _patterns(run)
    yield from _formats(run)
    yield from _plateaus(run)
    yield from _launches(run)


def _launches(run: Run) -> Iterator[Contradiction]:
    """Yield a mode in which nothing would be compiled: only steps that are launched together are."""
    train = run.train
    if train.capture == "off" and train.compile not in ("auto", "off"):
        text = "steps are compiled only if they are launched together, which train.capture: off excludes"
        yield Contradiction(("train", "compile"), text, "off, or train.capture: auto", train.compile)


def _plateaus(run: Run) -> Iterator[Contradiction]:
    """Yield metrics that a plateau schedule would wait for in vain."""
    known, metric = run.list_logged(), run.train.scheduler_metric
    if known is not None and (metric not in known or not metric.startswith("val_")):
        names = [name for name in known if name.startswith("val_")]
        text = "a schedule cannot wait for this metric"
        path, best = ("train", "scheduler_metric"), nearest(metric, names)
        yield Contradiction(path, text, f"one of {listing(names)}", repr(metric), best)


def _heads(run: Run) -> Iterator[Contradiction]:
    """Yield weights and metrics of outputs that have no loss."""
    train, heads = run.train, run.train.heads()
    for name in train.loss_weights:
        if name not in heads:
            expected = f"one of {listing(heads)}" if heads else "nothing: train.loss is not several losses"
            path = ("train", "loss_weights", name)
            yield Contradiction(path, "no loss of this name", expected, name, nearest(name, heads))
    if not heads:
        return
    if train.class_weights is not None:
        text = "there are several losses; set the weight of the loss that it belongs to"
        yield Contradiction(("train", "class_weights"), text)
    by_head = train.metric_heads()
    for name, key, _ in train.list_metrics():
        if name not in by_head:
            form = f"by output: metrics: {{{heads[0]}: [...]}}"
            where = ("train", "metrics", *key.split("."))
            yield Contradiction(where, "there are several outputs to measure", form, name)
    for name in dict.fromkeys(by_head.values()):
        if name not in heads:
            path, expected = ("train", "metrics", name), f"one of {listing(heads)}"
            yield Contradiction(path, "no loss of this name", expected, name, nearest(name, heads))


def _formats(run: Run) -> Iterator[Contradiction]:
    """Yield unknown export formats; custom kinds of learners are already registered at this point."""
    known = [*FORMATS, *(name for names in extensions.FORMATS.values() for name in names)]
    for i, name in enumerate(run.export.formats if run.export.formats != "auto" else ()):
        if name not in known:
            path, expected = ("export", "formats", str(i)), f"auto, or some of {', '.join(known)}"
            yield Contradiction(path, "no such export format", expected, repr(name), nearest(name, known))


def _names(run: Run) -> Iterator[Contradiction]:
    named: list[tuple[str, tuple[str, ...]]] = [
        (name, ("train", "metrics", *key.split("."))) for name, key, _ in run.train.list_metrics()
    ]
    named += [(name, ("evaluate", "functions", name)) for name in run.evaluate.functions]
    seen: set[str] = set()
    for name, where in named:
        if name in RESERVED or not name:
            yield Contradiction(where, "a metric cannot have this name", "another name", repr(name))
        elif name in seen:
            own = f"distinct names: metrics: {{{name}_1: ..., {name}_2: ...}}"
            yield Contradiction(where, "two metrics have the same name", own, name)
        seen.add(name)


def _metrics(run: Run) -> Iterator[Contradiction]:
    known = run.list_logged()
    for path, metric in find_deciding_metrics(run):
        if known is not None and metric not in known:
            yield Contradiction(
                path,
                "no metric of this name is logged",
                f"one of {listing(known)}",
                repr(metric),
                nearest(metric, known),
            )
    stop = run.train.stop
    if stop is not None and stop.patience is None and stop.reach is None:
        yield Contradiction(
            ("train", "stop"), "this never stops a run", "patience: 5ep, or reach: VALUE, or both"
        )
    if stop is not None and stop.patience is not None and Cadence.parse(stop.patience).by_time:
        yield Contradiction(
            ("train", "stop", "patience"),
            "patience cannot be in seconds",
            "epochs or batches, such as 5ep or 500ba",
            stop.patience,
        )
    if stop is not None and stop.patience is not None and not Cadence.parse(stop.patience).amount:
        yield Contradiction(
            ("train", "stop", "patience"), "patience must not be zero", "more than 0", stop.patience
        )


HIGHER: Final = (
    "accuracy", "top_k_accuracy", "binary_accuracy", "F1", "Precision", "Recall", "Auroc", "AveragePrecision",
)  # fmt: skip
"""Built-in metrics for which higher is better."""


def _directions(run: Run) -> Iterator[Contradiction]:
    """Yield directions that would minimize an accuracy."""
    owner = "manyfit.metrics."
    better = {f"val_{n}" for n, _, c in run.train.list_metrics() if c.path in {owner + m for m in HIGHER}}
    aims: list[tuple[tuple[str, ...], str, str]] = [(("export", "mode"), run.export.metric, run.export.mode)]
    if run.train.stop is not None:
        aims.append((("train", "stop", "mode"), run.train.stop.metric, run.train.stop.mode))
    for path, metric, mode in aims:
        if metric in better and mode == "min":
            yield Contradiction(path, f"higher values of {metric!r} are better", "max", "min")


def find_deciding_metrics(run: Run) -> list[tuple[tuple[str, ...], str]]:
    """Return the metrics that decide which checkpoint is best and when to stop, with their keys."""
    stop = [(("train", "stop", "metric"), run.train.stop.metric)] if run.train.stop is not None else []
    return [(("export", "metric"), run.export.metric), *stop]


def _times(run: Run) -> Iterator[Contradiction]:
    """Yield intervals of zero, and decisions by metrics that are measured at different steps in each run."""
    every = run.train.every
    zero = [
        (("train", "every", key), text)
        for key, text in vars(every).items()
        if not all(cadence.amount for cadence in parse_cadences(text)[0])
    ]
    for where, text in zero:
        yield Contradiction(where, "an interval cannot be zero", "more than 0", text)
    if zero:
        return
    for path, metric in find_deciding_metrics(run):
        key = "validate" if metric.startswith("val_") else "log"
        if Cadence.parse(getattr(every, key)).by_time and not run.train.time_dependent:
            yield Contradiction(
                path,
                f"{metric!r} is measured at time intervals (train.every.{key}: {getattr(every, key)}), so "
                "decisions based on it would differ between runs",
                f"train.every.{key} in epochs or batches, or train.time_dependent: true",
                repr(metric),
            )


def _optimizers(run: Run) -> Iterator[Contradiction]:
    train = run.train
    names = list(train.optimizers())
    for i, group in enumerate(train.groups):
        where = ("train", "groups", str(i), "optimizer")
        if group.optimizer is not None and group.optimizer not in names:
            expected = f"one of {listing(names)}" if any(names) else "nothing: there is only one optimizer"
            yield Contradiction(
                where,
                "no such optimizer",
                expected,
                repr(group.optimizer),
                nearest(group.optimizer, names),
            )
        owners = train.optimizers()
        asked_of = [owners[group.optimizer]] if group.optimizer in owners else list(owners.values())
        for option in group.options:
            known = [
                key for owner in asked_of for key in signature_of(owner.target).parameters if key != "params"
            ]
            if known and option not in known:
                yield Contradiction(
                    ("train", "groups", str(i), "options", option),
                    "the optimizer has no such option",
                    f"one of {listing(known)}",
                    option,
                    nearest(option, known),
                )
    for name in train.schedulers():
        if name not in (names or [""]):  # without an optimizer in the config, the model defines its own
            yield Contradiction(
                ("train", "scheduler", *([name] if name else [])),
                "no optimizer of this name" if name else "there are several optimizers",
                f"a mapping with the names {listing(names)}" if any(names) else "a single schedule",
                repr(name) if name else "one schedule",
            )
    if train.momentum_scheduler is not None and names != [""]:
        path, received = ("train", "momentum_scheduler"), f"{len(names)} optimizers"
        yield Contradiction(path, "a momentum schedule needs a single optimizer", "one optimizer", received)
    if train.momentum_scheduler is not None and train.momentum_scheduler.path.endswith("ReduceLROnPlateau"):
        yield Contradiction(("train", "momentum_scheduler"), "a plateau schedule cannot set the momentum")
    if any(c.path.endswith(".LBFGS") for c in train.optimizers().values()):
        asked = {
            "precision": train.precision == "fp16",
            "clip_norm": train.clip_norm is not None,
            "clip_value": train.clip_value is not None,
            "optimizer": len(names) > 1,
        }
        for key in (key for key, is_asked in asked.items() if is_asked):
            yield Contradiction(
                ("train", key), "not supported with LBFGS, which evaluates the loss several times per step"
            )


def find_overridden_rates(train: Train, searched: Iterable[str] | None = None) -> Iterator[str]:
    """Yield a warning for learning rates, given or searched, that a schedule overrides."""
    owners = train.optimizers()
    places = {name: f"train.optimizer.{name}.lr" if name else "train.optimizer.lr" for name in owners}
    if searched is None:
        keys = [key for name, key in places.items() if "lr" in owners[name].params]
    else:
        keys = [key for key in searched if key in places.values()]
    for each in every_scheduler(train.scheduler) if keys else ():
        name = RATES.get(each.path, "")
        if name in each.params:
            hint = "remove one of them" if searched is None else f"search {name} instead"
            schedule = each.path.rpartition(".")[2]
            yield f"{listing(keys)} has no effect: {schedule} sets the rate by its own {name}; {hint}"


def _patterns(run: Run) -> Iterator[Contradiction]:
    train = run.train
    patterns: list[tuple[tuple[str, ...], str]] = [
        (("train", "groups", str(i), "match"), group.match) for i, group in enumerate(train.groups)
    ]
    for i, entry in enumerate(train.freeze):
        where = ("train", "freeze", str(i))
        if isinstance(entry, Freeze):
            if (entry.match is None) == (entry.up_to is None):
                yield Contradiction(where, "specify what to freeze", "either match or up_to")
            patterns += [((*where, "match"), entry.match)] if entry.match is not None else []
        else:
            patterns.append((where, entry))
    if train.warm_start is not None:
        patterns.append((("train", "warm_start", "match"), train.warm_start.match))
    for place, pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            yield Contradiction(
                place, f"invalid regular expression: {error}", "a pattern for parameter names", repr(pattern)
            )
