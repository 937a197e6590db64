"""The event log `metrics.jsonl`: append-only, one line per row, the source of truth for all metrics."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from manyfit.core.errors import FolderError
from manyfit.core.files import check_file, read_bytes
from manyfit.core.json_numbers import from_json, to_json
from manyfit.store import durable


@dataclass(frozen=True, slots=True)
class Event:
    """The values of one step."""

    step: int
    epoch: float
    time: float
    values: Mapping[str, float]

    def line(self) -> str:
        """Return the event as a line of JSON; NaN and infinities become text."""
        head = {"step": self.step, "epoch": self.epoch, "time": self.time}
        return json.dumps({**head, **to_json(self.values)}) + "\n"

    @staticmethod
    def parse(line: str) -> Event:
        """Parse one line."""
        row: dict[str, Any] = json.loads(line)
        head = {name: row.pop(name) for name in ("step", "epoch", "time")}
        is_whole = isinstance(head["step"], int) and head["step"] >= 0
        if not is_whole or not all(isinstance(value, int | float) for value in head.values()):
            raise ValueError(f"a row has no valid step, epoch or time: {line[:80]!r}")
        return Event(**head, values=from_json(row))


class RowBuffer:
    """Rows that are collected in memory, to be appended to the log of a run that is open elsewhere."""

    def __init__(self, length: int = 0) -> None:
        """`length` is the length of the log that they continue."""
        self.length = length
        """The length of the log in bytes after these rows."""
        self.events: list[Event] = []

    def append(self, step: int, epoch: float, values: Mapping[str, float]) -> Event:
        """Add one row."""
        event = Event(step, epoch, round(time.time(), 3), dict(values))
        self.events.append(event)
        self.length += len(event.line().encode())
        return event


class EventLog:
    """The event log of one run, open for appending."""

    def __init__(self, path: Path, length: int = 0) -> None:
        """Open the log and truncate it to `length` bytes: no checkpoint has committed the rest."""
        self.path = path
        path.parent.mkdir(exist_ok=True)
        check_file(path)
        durable.make_own(path)
        self._file = path.open("ab")
        if self._file.tell() < length:
            self._file.close()
            raise FolderError(
                f"{path} is shorter than its checkpoint requires: {path.stat().st_size} of {length} bytes"
            )
        self._file.truncate(length)
        self._file.seek(length)

    def append(self, step: int, epoch: float, values: Mapping[str, float]) -> Event:
        """Add one row."""
        event = Event(step, epoch, round(time.time(), 3), dict(values))
        self.extend([event])
        return event

    def extend(self, events: Iterable[Event]) -> None:
        """Add rows that were collected elsewhere."""
        self._file.write("".join(event.line() for event in events).encode())
        self._file.flush()

    @property
    def length(self) -> int:
        """The length of the log in bytes, for a checkpoint to record."""
        return self._file.tell()

    def read(self, begin: int, end: int) -> bytes:
        """Return what was written between two positions."""
        with self.path.open("rb") as file:
            file.seek(begin)
            return file.read(end - begin)

    def write_out(self) -> None:
        """Start to flush to disk, without waiting."""
        durable.write_out(self._file.fileno())

    def sync(self) -> None:
        """Flush to disk."""
        if not os.fstat(self._file.fileno()).st_nlink:
            raise FolderError(f"{self.path} was deleted while the run was training")
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> EventLog:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_events(path: Path, length: int | None = None) -> list[Event]:
    """Read a log up to `length` bytes, without an incomplete last line after a crash."""
    if length == 0 or not path.exists():
        return []
    data = read_bytes(path)[:length]
    if length and not data.endswith(b"\n"):
        raise FolderError(f"{path} is damaged: it differs from what a checkpoint has committed")
    try:
        return [Event.parse(line) for line in data[: data.rfind(b"\n") + 1].decode().splitlines()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FolderError(f"{path} is damaged: {error}") from error
