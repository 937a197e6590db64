"""Proof that a run resumes exactly: train it, kill it at several points, resume it, and compare.

Every training runs in its own process, which kills itself with SIGKILL at a given point.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, Literal

from manyfit.config.tree.overrides import Overrides
from manyfit.core.errors import ManyfitError, RunFailed
from manyfit.core.state import State
from manyfit.data import Batch, Order, Source
from manyfit.data.native import NativeBatches
from manyfit.data.resident import Resident, RowNumbers, find_resident
from manyfit.data.walk import Walk
from manyfit.run.loop.cohort import Cohort
from manyfit.run.loop.plan import Boundary
from manyfit.store import durable
from manyfit.store.folder import RunFolder

Where = Literal["step", "validation", "write", "epoch"]


@dataclass(frozen=True, slots=True)
class Kill:
    """A point at which a process kills itself: the count-th occurrence of an event."""

    where: Where
    count: int

    def __str__(self) -> str:
        words = {
            "step": "in training step",
            "validation": "in validation batch",
            "write": "at disk operation",
            "epoch": "after epoch",
        }
        return f"killed {words[self.where]} {self.count}"


POINTS: Final[Sequence[Sequence[Kill]]] = (
    [Kill("step", 1)],
    [Kill("step", 4)],
    [Kill("step", 9)],
    [Kill("validation", 2)],
    [Kill("validation", 6)],
    [Kill("write", 4)],
    [Kill("write", 14)],
    [Kill("epoch", 1)],
    [Kill("step", 5), Kill("step", 6)],
    [Kill("step", 11)],
)
"""The points of `manyfit check --resume`: one kill or several in succession, then a start to the end."""

PRELOADED: Final = (
    "manyfit.run.train",
    "manyfit.run.build.builder",
    "manyfit.run.session.finish",
    "tensorboard.summary.writer.event_file_writer",
    "torch._dynamo",
)
"""Modules that are slow to import and are therefore imported once for all processes."""

SMALL: Final = (
    "train.epochs=2",
    "train.limit.train=6",
    "train.limit.validation=2",
    "train.limit.test=1",
    "train.every.checkpoint=2ba",
    "train.every.validate=3ba",
    "train.every.log=2ba",
    "train.stop=null",
    "train.guard.nan=false",
    "track.mlflow=null",
)
"""Overrides for a short run in which all events occur within each epoch."""
SPARSE: Final = ("train.every.checkpoint=1ep",)
"""The uninterrupted run writes checkpoints at other steps than the others: this must not matter."""
DENSE: Final = ("train.every.checkpoint=1ba", "train.every.log=1ba")
"""Its twin pauses after every step: this must not matter either."""
SMALL_EPOCHS: Final = (
    *(change for change in SMALL if not change.startswith(("train.epochs", "train.every"))),
    "train.epochs=4",
    "train.every.checkpoint=1ep",
    "train.every.validate=1ep",
    "train.every.log=1ep",
)
"""The same for learners that pause only between epochs."""
SPARSE_EPOCHS: Final = ("train.every.checkpoint=2ep", "train.every.log=2ep")
EPOCH_POINTS: Final[Sequence[Sequence[Kill]]] = (
    [Kill("step", 1)],
    [Kill("step", 8)],
    [Kill("step", 15)],
    [Kill("validation", 3)],
    [Kill("write", 5)],
    [Kill("epoch", 1)],
    [Kill("epoch", 2)],
    [Kill("step", 9), Kill("step", 9)],
)


class Probe:
    """Callback that records the rows of each step, and kills the process at a point."""

    def __init__(self, trace: Path, kill: Kill | None) -> None:
        self._trace = trace
        self._kill = kill
        self._counts: dict[str, int] = {}

    def on_start(self, cohort: Cohort) -> None:
        """Wrap the data of the cohort."""
        member, steps = cohort.members[0], _Steps(cohort.step, self._trace, self)
        if isinstance(cohort.batches, Walk):
            cohort.batches = TracedWalk(cohort.batches, steps)
        else:
            cohort.batches = Traced(cohort.batches, steps)
        if member.validation is not None:
            member.validation = Watched(member.validation, self)
        if self._kill is not None and self._kill.where == "write":
            durable.before = lambda operation, path: self.passes("write")

    def on_boundary(self, cohort: Cohort, boundary: Boundary, rows: Sequence[Any]) -> None:
        """Count epochs."""
        if boundary.ends_epoch:
            self.passes("epoch")

    def on_end(self, cohort: Cohort) -> None:
        """Stop counting disk operations: only those during training count."""
        durable.before = None

    def passes(self, where: Where) -> None:
        """Count an event, and kill the process if this is the point."""
        self._counts[where] = self._counts.get(where, 0) + 1
        if self._kill is not None and self._kill == Kill(where, self._counts[where]):
            os.kill(os.getpid(), signal.SIGKILL)


class _Steps:
    """A record of the rows of each step."""

    def __init__(self, step: int, trace: Path, probe: Probe) -> None:
        self._step, self._trace, self._probe = step, trace, probe

    def add(self, rows: list[int]) -> None:
        """Record a step."""
        with self._trace.open("a") as file:
            file.write(json.dumps([self._step, rows]) + "\n")
        self._probe.passes("step")
        self._step += 1


class TracedWalk(Walk):
    """A walk of a single run that is launched, whose rows are recorded when they are read."""

    def __init__(self, walk: Walk, steps: _Steps) -> None:
        self.__dict__.update(walk.__dict__)
        self._trace = steps

    def __next__(self) -> tuple[Batch, ...]:
        is_numbered = bool(self._rows)  # then, their numbers are read first
        found = super().__next__()
        if not is_numbered:
            self._trace.add(found[0].index.tolist())
        return found

    def next_rows(self, steps: int) -> list[tuple[RowNumbers, ...]]:
        """Return the row numbers of the next steps."""
        found = super().next_rows(steps)
        for (rows,) in found:
            self._trace.add(list(map(int, rows)))
        return found


class Traced(Iterator[Batch]):
    """Batches whose rows are recorded for each step.

    A framework that reads batches itself still does so, one at a time; then the rows are unknown.
    """

    def __init__(self, batches: Iterator[Batch], steps: _Steps) -> None:
        self._batches = batches
        self._steps = steps

    @property
    def framework(self) -> str:
        """The framework that can read these batches itself."""
        return self._batches.framework if isinstance(self._batches, NativeBatches) else ""

    def native(self, most: int) -> tuple[Any, int]:
        """Return the iterator of the framework, for one batch."""
        assert isinstance(self._batches, NativeBatches)
        found = self._batches.native(1)
        self._steps.add([])
        return found

    def __next__(self) -> Batch:
        batch = next(self._batches)
        self._steps.add(batch.index.tolist())
        return batch


class Watched:
    """Source whose batches are counted."""

    def __init__(self, source: Source, probe: Probe) -> None:
        self._source = source
        self._probe = probe

    def __len__(self) -> int:
        return len(self._source)

    def batches(self, order: Order, start: int = 0) -> Iterator[Batch]:
        """Yield the same batches."""
        for batch in self._source.batches(order, start):
            self._probe.passes("validation")
            yield batch

    def resident(self, order: Order) -> Resident | str:
        """Return the same rows, whose numbers are counted when they are read."""
        found = find_resident(self._source, order)
        if isinstance(found, str):
            return found
        read = found.rows

        def count(start: int) -> Iterator[RowNumbers]:
            for rows in read(start):
                self._probe.passes("validation")
                yield rows

        return replace(found, rows=count)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)


def train_once(config: str, overrides: Overrides, folder: str, trace: str, kill: Kill | None) -> None:
    """Train in this process, which may kill itself."""
    from manyfit.run.train import train

    try:
        train(config, overrides, folder=folder, callbacks=[Probe(Path(trace), kill)])
    except ManyfitError as error:
        Path(folder).parent.mkdir(parents=True, exist_ok=True)
        Path(f"{folder}.error").write_text(str(error))
        sys.exit(1)


def attempt_training(config: Path, overrides: Overrides, folder: Path, kill: Kill | None) -> int:
    """Train in a new process; return its exit code, negative for a signal."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    process = context.Process(
        target=train_once,
        args=(str(config), list(overrides), str(folder), f"{folder}.trace", kill),
    )
    process.start()
    process.join()
    return int(process.exitcode or 0)


def kill_and_resume(config: Path, overrides: Overrides, folder: Path, kills: Sequence[Kill]) -> int:
    """Kill a run at several points in succession, then let it finish; return how many kills occurred."""
    hits = 0
    for kill in kills:
        code = attempt_training(config, overrides, folder, kill)
        hits += code == -signal.SIGKILL
        if code not in (0, -signal.SIGKILL):
            raise RunFailed(explain_exit(folder, code))
    code = attempt_training(config, overrides, folder, None)
    if code:
        raise RunFailed(explain_exit(folder, code))
    return hits


def explain_exit(folder: Path, code: int) -> str:
    """Return why a training process failed."""
    file = Path(f"{folder}.error")
    return file.read_text() if file.exists() else f"the training ended with exit code {code}"


def difference(left: RunFolder, right: RunFolder, with_log: bool = True) -> str:
    """Return the first difference of two finished runs, bit for bit; empty if there is none.

    Without the log, runs are compared that were logged at different steps.
    """
    a, b = left.checkpoints()[-1], right.checkpoints()[-1]
    if a.step != b.step:
        return f"one ended at step {a.step}, the other at step {b.step}"
    first, second = a.load(), b.load()
    if not with_log:
        first, second = (State(*map(_drop_sums, (s.tensors, s.values))) for s in (first, second))
    for name in first.tensors.keys() | second.tensors.keys():
        if name not in first.tensors or name not in second.tensors:
            return f"{name} is only in one of them"
    for name, tensor in first.tensors.items():
        if not _same(tensor, second.tensors[name]):
            return f"{name} differs (of {', '.join(sorted({n.partition('/')[0] for n in first.tensors}))})"
    for name in first.values:
        if first.values[name] != second.values.get(name):
            return f"the {name} differs"
    rows = [[(e.step, dict(e.values)) for e in run.events()] for run in (left, right)]
    for row, its in zip(*rows, strict=False) if with_log else ():
        if repr(row) != repr(its):
            return f"the log differs at step {row[0]}: {row[1]} and {its[1]}"
    if with_log and len(rows[0]) != len(rows[1]):
        return f"one log has {len(rows[0])} rows, the other {len(rows[1])}"
    for report in ("validation.csv", "test.csv"):
        one, other = (run.reports / report for run in (left, right))
        if one.exists() != other.exists() or (one.exists() and one.read_bytes() != other.read_bytes()):
            return f"{report} differs"
    return _traces(Path(f"{left.path}.trace"), Path(f"{right.path}.trace"))


def _drop_sums(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a state without the sums since the last row of the log."""
    return {name: value for name, value in values.items() if name.partition("/")[0] != "sums"}


def _same(left: Any, right: Any) -> bool:
    import torch

    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    flat = left.contiguous().view(-1), right.contiguous().view(-1)
    return bool(torch.equal(flat[0].view(torch.uint8), flat[1].view(torch.uint8))) if left.numel() else True


def _traces(left: Path, right: Path) -> str:
    """Return the first step that saw different rows, however often it was trained; empty if none did."""
    seen: dict[int, list[int]] = {}
    for path in (left, right):
        steps = set()
        for line in path.read_text().splitlines():
            step, rows = json.loads(line)
            steps.add(step)
            if seen.setdefault(step, rows) != rows:
                return f"step {step} saw other rows"
        if steps != set(range(max(steps) + 1)):
            return "some steps were never trained"
    return ""
