"""The rehearsal of a run: one batch is evaluated before training, and the result is checked."""

from __future__ import annotations

import functools
import itertools
import logging
import warnings
from collections.abc import Iterable, Iterator
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np

from manyfit.config import Config
from manyfit.config.dialects.table import dialect_of
from manyfit.config.schema.consistency import find_deciding_metrics, find_overridden_rates
from manyfit.core.errors import UsageError
from manyfit.core.names import listing, nearest
from manyfit.data import ClassWeighted, Limited, Source, once
from manyfit.data.nested import pair_outputs
from manyfit.data.overlap import Compared
from manyfit.data.randomness import own_randomness
from manyfit.learn.learner import Outputs
from manyfit.learn.split_metrics import SplitMetrics
from manyfit.run.build.builder import Built, key_of
from manyfit.run.build.user_code import list_classes, main_classes, misspelt

log = logging.getLogger("manyfit")

FEW: Final = 20_000
"""The most rows of a test split of which all IDs are checked before the first step."""


def rehearse_batch(built: Built, config: Config) -> None:
    """Evaluate one batch before the first step, so that a mistake in a metric does not cost an epoch."""
    first = built.split("validation") or built.train
    built.learner.rehearse()
    check_overlap(built, config)
    found = [*find_overridden_rates(config.run.train), *find_unused(built), *almost_hooks(config)]
    for text in [*found, *compare_evaluations(built)]:
        log.warning("%s", text)
    if found := main_classes(config):
        log.warning(
            "%s is defined in the script that is running, so only this script can open the run again: move "
            "it into a module of %s/, and refer to it as module.Class",
            listing(found), config.run.src_code_path.name,
        )  # fmt: skip
    with own_randomness():
        test = built.split("test")
        if test is not None:
            batch = next(once(test, built.evaluation_batch_size))
            is_known = getattr(test, "remade_by", "")  # then IDs are read with the rows
            test.ids(np.arange(len(test)) if len(test) <= FEW and not is_known else batch.index)
        for split in ("validation", "test"):
            source: Any = built.split(split)
            if isinstance(source, Proven):
                source.prove()
        if not built.learner.is_ready:  # it cannot predict before it is trained
            check_names(built, config, ["loss"])
            warn_unread(built, config)
            return
        outputs = _one_batch(built, first)
        check_batch_size(built, config, first, len(outputs.index))
        check_target(built, config, outputs)
        check_class_weights(built, outputs)
        first.ids(outputs.index)
        metrics = SplitMetrics(built.whole)
        target = None if outputs.target is None else outputs.target[0]
        with warnings.catch_warnings():  # one batch may lack a class
            warnings.simplefilter("ignore")
            metrics.update(outputs.output[0], target, functools.partial(outputs.every, 0))
            metrics.values()
        if built.evaluator.functions and outputs.target is not None:
            built.evaluator(*outputs.every(0))
        check_outputs(built, outputs)
    check_names(built, config, outputs.rows)
    warn_unread(built, config)


def check_batch_size(built: Built, config: Config, source: Source, rows: int) -> None:
    """Warn if `evaluate.batch_size` has no effect because the source sets its own batch size."""
    wanted = config.run.evaluate.batch_size
    if wanted is not None and rows != min(wanted, len(source)):
        log.warning(
            "%s: evaluate.batch_size has no effect: %s sets its own batch size (%d rows)",
            config.origin("evaluate.batch_size"), config.run.data.path, rows,
        )  # fmt: skip


def check_overlap(built: Built, config: Config) -> None:
    """Refuse rows of validation or test that are also trained on, unless the config allows it."""
    data, limit = config.run.data, config.run.train.limit
    if limit.overfit is not None or data.beside.get("allow_overlap"):
        return
    compared = Compared(built.train)
    for split in ("validation", "test"):
        source = built.split(split)
        found = built.splits.overlap(split, source, compared) if source is not None else None
        if source is None or found is None or not found.rows:
            continue
        shown = listing(source.ids(np.asarray(found.rows[:3], dtype=np.int64)))
        what = (
            f"{len(found.rows)} of {found.looked_at} rows of the {split} split are also in the training split"
        )
        if found.is_error:
            key = key_of(config, "allow_overlap")
            raise UsageError(
                f"{data.origin}: data: {what} (such as {shown}), which makes metrics of that split "
                f"meaningless: assign each row to one split, or set {key}: true"
            )
        log.warning("%s (such as %s): so few may be a coincidence", what, shown)


def compare_evaluations(built: Built) -> Iterator[str]:
    """Yield a warning if validation and test have the same rows."""
    if built.split("validation") is not None and built.split("test") is not None:
        found = built.fingerprints()
        if found["validation"] == found["test"]:
            yield (
                "validation and test have the same rows: the test metrics of the best checkpoint are too "
                "optimistic, since it was selected by them"
            )


def check_target(built: Built, config: Config, outputs: Outputs) -> None:
    """Check that there are targets for everything that compares outputs with targets."""
    if outputs.target is not None:
        return
    if config.run.train.loss is not None:
        raise UsageError(
            f"{config.run.data.origin}: data: the rows of the validation split have no target, so "
            "val_loss cannot be measured (a feeder needs labels_map, a data set returns (input, target))"
        )
    asked = {
        "train.metrics": [*built.learner.row_metrics, *built.whole],
        "evaluate": list(built.evaluator.functions),
    }
    for key, names in asked.items():
        if names:
            where = config.origin(key) or config.run.data.origin
            raise UsageError(
                f"{where}: {key}: {listing(names)} needs a target, but {config.run.data.path} has none; "
                "the target is the second element of a row, or the input named target"
            )


def check_outputs(built: Built, outputs: Outputs) -> None:
    """Warn which of several outputs metrics measure, and refuse metrics named like a report column."""
    (first, *_), *others = pair_outputs(*outputs.every(0))
    if not others or outputs.has_heads:
        return
    named = [*built.learner.row_metrics, *built.whole, *built.evaluator.named]
    for name, *_ in others:
        for column in (f"target_{name}", f"prediction_{name}", f"confidence_{name}"):
            if column in [*named, *built.evaluator.functions]:
                raise UsageError(
                    f"{column} is the column of the output {name!r} in reports; rename the metric"
                )
    if named:
        log.warning(
            "metrics (%s) measure the output %r; only per-row functions receive %s",
            listing(named), first, listing([repr(name) for name, *_ in others]),
        )  # fmt: skip


def check_class_weights(built: Built, outputs: Outputs) -> None:
    """Refuse weights of classes that the model does not have."""
    weighted = built.train.source if isinstance(built.train, Limited) else built.train
    if not isinstance(weighted, ClassWeighted):
        return
    shape = outputs.output.shape[2:]
    count = max(2, shape[-1]) if shape else 2
    lost = [str(number) for number in weighted.weights if not 0 <= number < count]
    if lost:
        raise UsageError(
            f"get_class_weight returns a weight for class {listing(lost)}, but the model has {count} classes"
        )


def almost_hooks(config: Config) -> Iterator[str]:
    """Yield warnings about methods that are never called, but are named almost like a hook.

    In a class of training functions, they are errors: what they replace would not be replaced.
    """
    for cls in list_classes(config):
        for name, meant in misspelt(cls):
            if hasattr(cls, "as_functions"):
                raise UsageError(f"nothing calls {cls.__name__}.{name}; did you mean {meant}?")
            yield f"manyfit does not call {cls.__name__}.{name}; did you mean {meant}?"


HOOKS: Final = (
    "training_step", "validation_step", "test_step", "predict_step", "custom_evaluation", "train_dataloader",
    "val_dataloader", "test_dataloader", "on_train_start", "on_train_epoch_end", "on_validation_epoch_end",
)  # fmt: skip
"""Methods that other frameworks call."""


def find_unused(built: Built) -> Iterator[str]:
    """Yield warnings about code and settings that have no effect."""
    model = built.learner.models[0]
    found = [name for name in HOOKS if callable(getattr(type(model), name, None))]
    if found and built.learner.names_are_known:
        yield (
            f"manyfit does not call {listing(found)} of {type(model).__name__}: a model is trained through "
            "forward and train.loss, or through train_step(batch, optimizer)"
        )
    size, rows = built.order.batch_size, len(built.train)
    if size > rows and not isinstance(built.train, Limited):
        yield f"the batch size is {size}, but there are only {rows} training rows: each epoch is one step"


def _one_batch(built: Built, source: Source) -> Outputs:
    batches = itertools.islice(once(source, built.evaluation_batch_size), 1)
    (outputs,) = built.learner.evaluate(batches)
    return outputs


@runtime_checkable
class Proven(Protocol):
    """A source whose number and order of rows were declared, and that can verify the declaration."""

    def prove(self) -> None:
        """Raise if there are fewer or more rows, or if they come in another order."""
        ...


def check_names(built: Built, config: Config, rows: Iterable[str]) -> None:
    """Check that the metrics for the best checkpoint and for early stopping are measured.

    Some models declare their metrics only after they were built.
    """
    if config.run.list_logged() is not None or not built.learner.names_are_known:
        return
    own = list(built.learner.whole()[0])
    known = ["train_loss", "lr", *(f"train_{name}" for name in own if name != "loss")]
    if built.split("validation") is not None:
        known += [f"val_{name}" for name in dict.fromkeys([*rows, *own, *built.whole])]
    for path, metric in find_deciding_metrics(config.run):
        if metric not in known:
            best = nearest(metric, known)
            hint = f"did you mean {best}?" if best else f"available: {listing(known)}"
            where = config.origin(".".join(path))
            raise UsageError(f"{where}: {'.'.join(path)}: no metric named {metric!r} is measured; {hint}")


def warn_unread(built: Built, config: Config) -> None:
    """Warn about custom keys that no component has read: one of them may be misspelled."""
    if built.settings is None:
        return
    reserved = dialect_of(config.tree).reserved
    found = [key for key in built.settings.unread() if key.partition(".")[0] not in reserved]
    shown = [f"{key} (did you mean {near}?)" if (near := nearest(key, reserved)) else key for key in found]
    if found:
        log.warning("no component reads %s in the config", ", ".join(shown))
