"""What a run takes along to the worker that trains it next, and what that worker returns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from manyfit.config.identity import Snapshot
from manyfit.run.loop.stopping import Ending, Judge
from manyfit.store.events import Event
from manyfit.store.manifest import Note
from manyfit.store.packed_state import PackedState


@dataclass(frozen=True)
class Luggage:
    """All that is needed to resume a run without its folder. It is `Recorded`, as the folder is."""

    path: Path
    """The folder of the run, for messages."""
    state: PackedState | None = None
    """None at the first step."""
    note: Note | None = None
    """The position of the state, and its place in the log."""
    kept: tuple[Note, ...] = ()
    """The checkpoints of the run, which new ones must surpass to be among the best."""
    judge: Judge | None = None
    """The judge of the log, which has seen all rows so far."""
    ended: Ending | None = None
    """Why nothing is left to train, according to the log of a run that is resumed."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """The weights that a new run starts from, by paths relative to the project."""
    frozen: Mapping[str, Any] = field(default_factory=dict)
    trained: Snapshot | None = None
    starts: Sequence[Mapping[str, Any]] = ()
    visits: tuple[tuple[int, ...], ...] = ()
    """By epoch: the shards that it visits first; the others follow in cyclic order."""
    measures_at: int | None = None
    """The shard of validation rows that is measured next; None to train."""
    measured: bytes = b""
    """What was collected from other shards of validation rows, as `MeasuredPart.pack` returns it."""
    puts_off: bool = False
    """Whether the validation at the end of an epoch is made shard by shard, in visits of their own."""

    def snapshot(self) -> Snapshot | None:
        """Return the values of the config that the run was trained with."""
        return self.trained

    def sessions(self) -> Sequence[Mapping[str, Any]]:
        """Return the starts of the run."""
        return self.starts


@dataclass(frozen=True)
class Parcel:
    """The result of a visit: new rows of the log, the state at its end, and the best states on the way."""

    events: tuple[Event, ...]
    states: tuple[tuple[Note, PackedState], ...]
    """In the order of their steps; the last one is the state at the end of the visit."""
    judge: Judge
    reason: str = ""
    """Why the run has ended early; empty if it has not."""
    is_over: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What the worker has found out about data, code and hardware."""
    messages: str = ""
    """Lines for `run.log`."""
    measured: bytes = b""
    """What was collected from shards of validation rows so far."""
    pictures: tuple[tuple[str, int, bytes], ...] = ()
    """Images that training has made: name, step and PNG."""
