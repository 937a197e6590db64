"""What the fields of a config say about each other."""

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
"""Columns of a report and keys of the log, which no metric can be called."""


class Contradiction(NamedTuple):
    """A field that does not fit the others."""

    path: tuple[str, ...]
    message: str
    expected: str = ""
    received: str = ""
    suggestion: str = ""


def contradictions(run: Run) -> Iterator[Contradiction]:
    """Find everything in a config that is well typed and still cannot be meant."""
    yield from _names(run)
    yield from _times(run)
    yield from _metrics(run)
    yield from _directions(run)
    yield from _optimizers(run)
    yield from _patterns(run)
    yield from _formats(run)


def _formats(run: Run) -> Iterator[Contradiction]:
    """A format must be one that some kind of model has; a kind of the user's own is registered by now."""
    known = [*FORMATS, *(name for names in extensions.FORMATS.values() for name in names)]
    for i, name in enumerate(run.export.formats if run.export.formats != "auto" else ()):
        if name not in known:
            path, expected = ("export", "formats", str(i)), f"auto, or some of {', '.join(known)}"
            yield Contradiction(path, "there is no such format", expected, repr(name), nearest(name, known))


def _names(run: Run) -> Iterator[Contradiction]:
    named = [(name, ("train", "metrics", key)) for name, key, _ in run.train.list_metrics()]
    named += [(name, ("evaluate", "functions", name)) for name in run.evaluate.functions]
    seen: set[str] = set()
    for name, where in named:
        if name in RESERVED or not name:
            yield Contradiction(where, "a metric cannot have this name", "another name", repr(name))
        elif name in seen:
            own = f"names of your own: metrics: {{{name}_1: ..., {name}_2: ...}}"
            yield Contradiction(where, "two metrics have the same name", own, name)
        seen.add(name)


def _metrics(run: Run) -> Iterator[Contradiction]:
    known = run.list_logged()
    for path, metric in find_deciding_metrics(run):
        if known is not None and metric not in known:
            yield Contradiction(
                path,
                "nothing of this name is measured",
                f"one of {listing(known)}",
                repr(metric),
                nearest(metric, known),
            )
    stop = run.train.stop
    if stop is not None and stop.patience is None and stop.reach is None:
        yield Contradiction(("train", "stop"), "this never stops", "patience: 5ep, or reach: VALUE, or both")
    if stop is not None and stop.patience is not None and Cadence.parse(stop.patience).by_time:
        yield Contradiction(
            ("train", "stop", "patience"), "patience cannot be a time", "such as 5ep or 500ba", stop.patience
        )
    if stop is not None and stop.patience is not None and not Cadence.parse(stop.patience).amount:
        yield Contradiction(("train", "stop", "patience"), "no patience at all", "more than 0", stop.patience)


HIGHER: Final = ("accuracy", "top_k_accuracy", "binary_accuracy")
"""Metrics of manyfit of which more is better."""


def _directions(run: Run) -> Iterator[Contradiction]:
    """The highest accuracy is the best one; to take the lowest is a slip."""
    owner = "manyfit.metrics."
    better = {f"val_{n}" for n, _, c in run.train.list_metrics() if c.path in {owner + m for m in HIGHER}}
    aims: list[tuple[tuple[str, ...], str, str]] = [(("export", "mode"), run.export.metric, run.export.mode)]
    if run.train.stop is not None:
        aims.append((("train", "stop", "mode"), run.train.stop.metric, run.train.stop.mode))
    for path, metric, mode in aims:
        if metric in better and mode == "min":
            yield Contradiction(path, f"more of {metric!r} is better", "max", "min")


def find_deciding_metrics(run: Run) -> list[tuple[tuple[str, ...], str]]:
    """The metrics that decide something, and where they are named."""
    stop = [(("train", "stop", "metric"), run.train.stop.metric)] if run.train.stop is not None else []
    return [(("export", "metric"), run.export.metric), *stop]


def _times(run: Run) -> Iterator[Contradiction]:
    """A measurement that is due by the clock falls on another step each time: it may not decide anything."""
    every = run.train.every
    zero = [
        (("train", "every", key), text)
        for key, text in vars(every).items()
        if not all(cadence.amount for cadence in parse_cadences(text)[0])
    ]
    for where, text in zero:
        yield Contradiction(where, "nothing can be due without end", "more than 0", text)
    if zero:
        return
    for path, metric in find_deciding_metrics(run):
        key = "validate" if metric.startswith("val_") else "log"
        if Cadence.parse(getattr(every, key)).by_time and not run.train.time_dependent:
            yield Contradiction(
                path,
                f"{metric!r} is measured by the clock (train.every.{key}: {getattr(every, key)}), so what it "
                "decides would change from run to run",
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
                "there is no such optimizer",
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
        if name not in (names or [""]):  # without one in the config, the model brings its own
            yield Contradiction(
                ("train", "scheduler", *([name] if name else [])),
                "there is no optimizer of this name" if name else "there are several optimizers",
                f"a mapping with the names {listing(names)}" if any(names) else "a single schedule",
                repr(name) if name else "one schedule",
            )
    if any(c.path.endswith(".LBFGS") for c in train.optimizers().values()):
        asked = {
            "precision": train.precision == "fp16",
            "clip_norm": train.clip_norm is not None,
            "clip_value": train.clip_value is not None,
            "optimizer": len(names) > 1,
        }
        for key in (key for key, is_asked in asked.items() if is_asked):
            yield Contradiction(("train", key), "this cannot be used with LBFGS, which takes its own steps")


def find_overridden_rates(train: Train, searched: Iterable[str] | None = None) -> Iterator[str]:
    """Rates of optimisers that have no effect, given or searched, because a schedule has one of its own."""
    owners = train.optimizers()
    places = {name: f"train.optimizer.{name}.lr" if name else "train.optimizer.lr" for name in owners}
    if searched is None:
        keys = [key for name, key in places.items() if "lr" in owners[name].params]
    else:
        keys = [key for key in searched if key in places.values()]
    for each in every_scheduler(train.scheduler) if keys else ():
        name = RATES.get(each.path, "")
        if name in each.params:
            hint = "leave one of them out" if searched is None else "search that instead"
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
                yield Contradiction(where, "say what is frozen", "either match or up_to")
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
                place, f"this is not a regular expression: {error}", "a pattern of names", repr(pattern)
            )
