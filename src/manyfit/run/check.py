"""Checks whether a run works: its classes, data, model, one batch, evaluation, and exact resumption."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from manyfit.config import Config, load_config
from manyfit.config.tree.overrides import Overrides
from manyfit.config.typed.artifacts import HINT
from manyfit.core.errors import ManyfitError, RunFailed, UsageError
from manyfit.core.files import read_text
from manyfit.core.tracebacks import notes, user_frame
from manyfit.data import Batch, once
from manyfit.data.layout import layout_of
from manyfit.data.randomness import own_randomness
from manyfit.learn.metrics_by_run import fetch
from manyfit.run.build.builder import SPLITS, Built, build, without_callbacks
from manyfit.run.build.modes import compute_as
from manyfit.run.build.shared_data import SharedData
from manyfit.run.resume_proof import (
    DENSE,
    EPOCH_POINTS,
    POINTS,
    SMALL,
    SMALL_EPOCHS,
    SPARSE,
    SPARSE_EPOCHS,
    difference,
    kill_and_resume,
)
from manyfit.run.session.batch_rehearsal import Proven, rehearse_batch
from manyfit.run.session.fusing import why_not_fused
from manyfit.store.folder import RunFolder

FIT_STEPS = 30
NOT_KEPT = "is not kept in checkpoints"
"""How a run names state that it cannot keep."""


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

    name: str
    ok: bool
    detail: str


def check_run(source: Path, overrides: Overrides = (), trust: bool = False) -> Iterator[Finding]:
    """Check a run without writing anything; yield each finding as soon as it is known."""
    config = load_config(source, overrides, trust=trust)
    yield Finding("classes", True, ", ".join(dict.fromkeys(_classes(config))))
    with own_randomness():
        found = list(_try("build", lambda: build(config, warm=True), lambda built: built.learner.describe()))
        yield from (finding for finding, _ in found)
        built = found[-1][1]
        if built is None:
            return
        for split in SPLITS:
            if built.split(split) is not None:
                yield from (f for f, _ in _try(f"{split} data", lambda s=split: _rows(built, s), str))  # type: ignore[misc]
        if built.learner.guarantee:
            yield Finding("guarantee", True, built.learner.guarantee)
        yield from (f for f, _ in _try("one batch fits", lambda: _fits(config), str))
        yield from (f for f, _ in _try("evaluation", lambda: _evaluate(built, config), str))


def _classes(config: Config) -> Iterator[str]:
    """Yield every class of a config, also classes that components receive as arguments."""
    run = config.run
    for component in [run.data, run.model, run.trainer, run.evaluate.evaluator]:
        params = component.params.values() if component is not None else ()
        yield from (f"{cls.__module__}.{cls.__qualname__}" for cls in params if isinstance(cls, type))
    yield from config.classes.values()


def _try(name: str, act: Callable[[], Any], describe: Callable[[Any], str]) -> Iterator[tuple[Finding, Any]]:
    try:
        value = act()
        yield Finding(name, True, describe(value)), value
    except ManyfitError as error:
        yield Finding(name, False, str(error)), None
    except Exception as error:
        text = f"{type(error).__name__}: {error}{notes(error)}\n  at {user_frame(error)}"
        yield Finding(name, False, text), None


def _rows(built: Built, split: str) -> str:
    source = built.split(split)
    assert source is not None
    batch = next(once(source, built.order.batch_size))
    if isinstance(source, Proven):
        source.prove()
    is_known = getattr(source, "remade_by", "") and split == "test"  # then IDs come with the rows
    ids = source.ids(batch.index if is_known else np.arange(len(source), dtype=np.int64))
    return f"{len(source):,} rows; {_shapes(batch)}; first id {ids[0]!r}"


def _shapes(batch: Batch) -> str:
    def shape(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{name}: {shape(item)}" for name, item in value.items()) + "}"
        if isinstance(value, tuple):
            return "(" + ", ".join(map(shape, value)) + ")"
        return f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"

    parts = [f"inputs {shape(batch.inputs)}"]
    parts += [f"target {shape(batch.target)}"] if batch.target is not None else []
    parts += [f"weight {shape(batch.weight)}"] if batch.weight is not None else []
    return ", ".join(parts)


def _fits(config: Config) -> str:
    """Train repeatedly on one batch, and check that its loss falls."""
    built = without_callbacks(build(config, warm=True))
    if built.learner.reads_data:
        built.learner.train(iter(()), 1)
        loss = fetch(built.learner.take().get("train_loss", [np.nan]))
        return f"loss {float(loss[0]):.4g} on all rows, fitted in one step"
    batch = next(built.train.batches(built.order))
    losses, moves, grain = [], False, built.learner.grain
    if not built.learner.names_are_known:  # a loss of several need not fall
        return _moves(built, batch)
    for _ in range(FIT_STEPS):
        built.learner.train(itertools.repeat(batch), grain)
        moves = moves or built.learner.has_gradients()
        losses.append(float(fetch(built.learner.take().get("train_loss", [np.nan]))[0]))
    if np.isnan(losses).all():
        return "the model updates itself and returns no loss"
    text = f"loss {losses[0]:.4g} → {min(losses):.4g} in {FIT_STEPS} steps on one batch"
    if not moves:  # a loss may also fall at random: by dropout, or by weight decay
        raise RunFailed(f"the loss does not fall: no gradient reaches a weight; {text}")
    if not min(losses[1:]) < losses[0]:
        raise RunFailed(f"the loss does not fall: {text}")
    return text


def _moves(built: Built, batch: Batch) -> str:
    """Train on one batch with the user's functions, and check that it changes weights."""
    learner, grain = built.learner, built.learner.grain
    before = {name: tensor.clone() for name, tensor in learner.state()[0].tensors.items()}
    learner.train(itertools.repeat(batch), max(grain, FIT_STEPS // grain * grain))
    after = learner.state()[0].tensors
    moved = [name for name, tensor in before.items() if name not in after or not _equal(tensor, after[name])]
    if not any(name.startswith(("model/", "found/objects/")) for name in moved):
        raise RunFailed("no weight changes: nothing is trained")
    found = {name: float(fetch(value)[0]) for name, value in learner.take().items()}
    return ", ".join(f"{name} {value:.4g}" for name, value in found.items()) + " after training on one batch"


def _equal(left: Any, right: Any) -> bool:
    return left.shape == right.shape and bool((left == right).all())


def _evaluate(built: Built, config: Config) -> str:
    rehearse_batch(built, config)
    source = built.split("validation")
    if not built.learner.names_are_known and source is not None:
        found = built.learner.measure(itertools.islice(once(source, built.evaluation_batch_size), 1))
        return ", ".join(found) or "nothing is measured"
    names = [name for name, _, _ in config.run.train.list_metrics()] + list(built.evaluator.functions)
    own = [name for name in built.learner.whole()[0] if name != "loss"]
    is_coupled = built.learner.couples_rows
    return ", ".join(["loss (per batch, since it couples rows)" if is_coupled else "loss", *own, *names])


def check_resume(source: Path, overrides: Overrides = (), trust: bool = False) -> Iterator[Finding]:
    """Train a few steps, kill the run at several points, resume it, and compare the results bit for bit."""
    config = load_config(source, overrides, trust=trust)
    if config.given.artifact is not None:
        raise UsageError(f"{source} was not trained here, and this would train it; {HINT}")
    with own_randomness():
        learner = build(config, warm=True).learner
    is_by_step = learner.grain == 1 and not learner.reads_data
    small, points = (SMALL, POINTS) if is_by_step else (SMALL_EPOCHS, EPOCH_POINTS)
    changes = [*overrides, *small]
    with tempfile.TemporaryDirectory(prefix="manyfit-check-") as folder:
        place = Path(folder) / "runs"
        try:
            kill_and_resume(source, [*changes, *SPARSE], place / "whole", [])
            kill_and_resume(source, [*changes, *(DENSE if is_by_step else SPARSE_EPOCHS)], place / "twin", [])
        except RunFailed as error:
            yield Finding("a few steps", False, str(error))
            return
        whole, twin = RunFolder(place / "whole"), RunFolder(place / "twin")
        found = difference(whole, twin, with_log=False)
        same = "the same weights, optimizer, schedule and random states"
        yield Finding("logged and stored at other steps", not found, blame(found, learner.lost, twin) or same)
        for i, kills in enumerate(points):
            name = ", then ".join(map(str, kills))
            try:
                hits = kill_and_resume(source, changes, place / f"killed-{i}", kills)
            except RunFailed as error:
                yield Finding(name, False, str(error))
                continue
            if not hits:
                yield Finding(name, True, "the run finished before this point")
                continue
            killed = RunFolder(place / f"killed-{i}")
            found = difference(whole, killed)
            same = "the same weights, optimizer, schedule, random states, log and rows"
            yield Finding(name, not found, blame(found, learner.lost, killed) or same)


def blame(difference: str, lost: Mapping[str, str], run: RunFolder) -> str:
    """Return a difference with what may have caused it: state that checkpoints do not keep."""
    if not difference:
        return ""
    said = read_text(run.path / "run.log") if (run.path / "run.log").exists() else ""
    named = [f"{name} ({reason})" for name, reason in lost.items()]
    lines = [line.partition("WARNING ")[2] or line for line in said.splitlines() if NOT_KEPT in line]
    named += [line for line in lines if not any(f".{name} {NOT_KEPT}" in line for name in lost)]
    return difference + "".join(f"\n  not kept: {each}" for each in dict.fromkeys(named))


def rehearse_run(
    config: Config, steps: int = 5, shared: SharedData | None = None, fuses: bool = False
) -> dict[str, Any]:
    """Build a run, evaluate one batch and train a few steps; return only the measured time and size.

    With `fuses`, also return why it cannot be trained in one pass with others, if so.
    """
    with own_randomness(), compute_as(config.run.train):
        built = without_callbacks(build(config, warm=True, shared=shared))
        rehearse_batch(built, config)
        refused = {"not_fused": why_not_fused(built)} if fuses else {}
        batches, grain = built.train.batches(built.order), built.learner.grain
        count = max(1, min(steps, built.plan.total - 1) // grain) * grain
        built.learner.train(batches, grain)
        began = time.perf_counter()
        built.learner.train(batches, count)
        fetch(next(iter(built.learner.take().values()), [0.0]))
        seconds = (time.perf_counter() - began) / count
        began, source = time.perf_counter(), built.split("validation")
        if source is not None and not built.learner.reads_data:
            next(built.learner.evaluate(itertools.islice(once(source, built.order.batch_size), 1)))
        batches_of = -(-len(source) // built.order.batch_size) if source is not None else 0
        validation = (time.perf_counter() - began) * batches_of
        tensors = built.learner.state()[0].tensors.values()
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        per_epoch = built.plan.steps_per_epoch * seconds + validation
        shards = built.order.layout.shards if built.order.layout is not None else 0
        return {
            "epoch_seconds": per_epoch, "bytes": size, "shards": shards, "grain": grain,
            "reads_data": built.learner.reads_data,
            "validation_shards": count_validation_shards(built), **refused,
        }  # fmt: skip


def count_validation_shards(built: Built) -> int:
    """Return the number of shards in which validation rows can be measured; 0 if they are not divided."""
    layout = layout_of(built.validation)
    return layout.shards if layout is not None and built.learner.divides_measure(bool(built.whole)) else 0
