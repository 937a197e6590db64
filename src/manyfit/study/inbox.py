"""What people ask of a study while it runs: a file for each command, read by the one driver."""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from manyfit.core.errors import FolderError, UsageError
from manyfit.store import durable

ACTIONS: Final = ("stop", "resume", "clone", "add")
BELL: Final = ".bell"
MOST_BYTES: Final = 1 << 20
BETWEEN: Final = 0.2
"""Seconds between looks at the folder while nobody rings the bell."""


@dataclass(frozen=True)
class Command:
    """One thing that somebody wants."""

    action: str
    point: int | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    weights: bool = False
    file: str = ""


def send(inbox: Path, command: Command) -> Path:
    """Leave a command, and ring the bell if the driver listens."""
    name = f"{time.time_ns()}-{os.getpid()}.json"
    text = {
        "action": command.action,
        "point": command.point,
        "values": dict(command.values),
        "weights": command.weights,
    }
    durable.write(inbox / name, json.dumps(text, indent=1) + "\n")
    with contextlib.suppress(OSError):  # nobody listens: it is read when the study is started again
        bell = os.open(inbox / BELL, os.O_WRONLY | os.O_NONBLOCK)
        try:
            os.write(bell, b"!")
        finally:
            os.close(bell)
    return inbox / name


class Inbox:
    """The driver's side: it is woken by the bell and reads what has come."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder.absolute()  # it is read while a trial runs, whose code may be anywhere
        self._looked = -math.inf
        self.bell: int | None = None
        try:
            with contextlib.suppress(FileExistsError):
                os.mkfifo(folder / BELL)
            self.bell = os.open(folder / BELL, os.O_RDWR | os.O_NONBLOCK)
        except OSError:  # a file system without pipes: commands are read when something else happens
            self.bell = None

    def commands(self) -> Iterator[Command]:
        """Every command that has come, the oldest first. One that cannot be read is set aside."""
        now, rung = time.monotonic(), False
        if self.bell is not None:
            with contextlib.suppress(BlockingIOError):
                rung = bool(os.read(self.bell, 4096))
        if not rung and now < self._looked + BETWEEN:
            return
        self._looked = now
        try:
            names = os.listdir(self._folder)  # noqa: PTH208
        except FileNotFoundError:
            return
        for file in sorted(self._folder / name for name in names if name.endswith(".json")):
            try:
                yield parse(file)
            except FolderError as error:
                self.refuse(file.name, str(error))

    def done(self, name: str) -> None:
        """A command was carried out."""
        (self._folder / name).unlink(missing_ok=True)

    def refuse(self, name: str, reason: str) -> None:
        """Set a command aside that cannot be carried out, with the reason."""
        refused = self._folder / "refused"
        refused.mkdir(exist_ok=True)
        (self._folder / name).replace(refused / name)
        (refused / f"{name}.txt").write_text(f"{reason}\n")

    def close(self) -> None:
        """Stop listening."""
        if self.bell is not None:
            os.close(self.bell)
            self.bell = None


def parse(file: Path) -> Command:
    """Read a command with suspicion."""
    try:
        if file.is_symlink() or not file.is_file():
            raise ValueError("it is not a file")
        if file.stat().st_size > MOST_BYTES:
            raise ValueError("it is too large")
        found = json.loads(file.read_bytes())
        point, values = found.get("point"), found.get("values", {})
        if found.get("action") not in ACTIONS:
            raise ValueError(f"there is no action {found.get('action')!r}")
        if found["action"] != "add" and (not isinstance(point, int) or isinstance(point, bool)):
            raise ValueError("it does not name a point")
        if not isinstance(values, dict):
            raise ValueError("its values are not an object")
        return Command(found["action"], point, values, bool(found.get("weights")), file.name)
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise FolderError(f"{file} is not a command: {error}") from error


def number_of(text: str, count: int, ids: Mapping[str, int]) -> int:
    """The number of a point from what a person writes: its number, its name, or the name of a trial."""
    if text.isdecimal() and int(text) < count:
        return int(text)
    found = {number for id, number in ids.items() if id.startswith(text)} if len(text) >= 4 else set()
    if len(found) != 1:
        wanted = f"a number below {count}, or the name of a point or trial"
        raise UsageError(
            f"{text!r} is {'not a point of this study' if not found else 'ambiguous'}; give {wanted}"
        )
    return found.pop()
