"""The inbox of a study: one file per command, read by the driver while the study is running.

A command is a JSON file `<time>-<process>.json`. The driver deletes it once it is carried out, or moves it to
`refused/` with the reason in a text file. A datagram to the "bell", a Unix socket, wakes a waiting driver.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import re
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from manyfit.core.errors import FolderError, UsageError
from manyfit.core.files import make_folder
from manyfit.store import durable

log = logging.getLogger("manyfit")

ACTIONS: Final = ("stop", "resume", "clone", "add", "scale")
BELL: Final = ".bell"
NAME: Final = re.compile(r"[\w.-]{1,100}\.json", re.ASCII)
MOST_BYTES: Final = 1 << 20
MOST_WORKERS: Final = 4096
BETWEEN: Final = 0.2
"""Seconds between reads of the folder while the bell is not rung."""


@dataclass(frozen=True)
class Command:
    """A command from a user to the driver."""

    action: str
    point: int | None = None
    values: Mapping[str, Any] = field(default_factory=dict)
    weights: bool = False
    file: str = ""


def send_command(inbox: Path, command: Command) -> Path:
    """Write a command to the inbox, and ring the bell of a listening driver."""
    name = f"{time.time_ns()}-{os.getpid()}.json"
    text = {
        "action": command.action,
        "point": command.point,
        "values": dict(command.values),
        "weights": command.weights,
    }
    make_folder(inbox)
    durable.write_file(inbox / name, json.dumps(text, indent=1) + "\n")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell, contextlib.suppress(OSError):
        bell.setblocking(False)  # without a driver, the command is read at the next start of the study
        bell.sendto(b"!", find_bell(inbox))
    return inbox / name


def find_bell(inbox: Path) -> bytes:
    """Return the address of the driver's bell: an abstract socket, which has no file.

    A pipe or a socket in the study folder would outlive the driver and could not be copied with the folder.
    """
    found = inbox.stat()
    text = f"{found.st_dev}:{found.st_ino}:{inbox.resolve()}"
    return b"\0manyfit-" + hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32].encode()


class Inbox:
    """The inbox as the driver reads it."""

    def __init__(self, folder: Path) -> None:
        make_folder(folder)
        self._folder = folder.absolute()  # the code of a running trial may change the working directory
        self._looked = -math.inf
        self._ignored: set[str] = set()
        self._socket: socket.socket | None = None
        with contextlib.suppress(OSError):  # a pipe that an older version left behind
            if (folder / BELL).is_fifo():
                (folder / BELL).unlink()
        if sys.platform == "linux":  # only Linux has abstract sockets; elsewhere, the folder is polled
            with contextlib.suppress(OSError):
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)
                self._socket.bind(find_bell(self._folder))

    @property
    def bell(self) -> int | None:
        """A file descriptor that becomes readable when a command arrives; None without a socket."""
        return self._socket.fileno() if self._socket is not None else None

    def commands(self) -> Iterator[Command]:
        """Yield the pending commands, oldest first; one that cannot be read is refused."""
        now, rung = time.monotonic(), False
        if self._socket is not None:
            with contextlib.suppress(BlockingIOError):
                while self._socket.recv(16):
                    rung = True
        if not rung and now < self._looked + BETWEEN:
            return
        self._looked = now
        try:
            names = os.listdir(self._folder)  # noqa: PTH208
        except FileNotFoundError:
            return
        for name in sorted(name for name in names if name.endswith(".json") and name not in self._ignored):
            if not NAME.fullmatch(name):
                log.warning("the inbox contains a file that is not a command: %r", name)
                self._ignored.add(name)
                continue
            try:
                yield read_command(self._folder / name)
            except FolderError as error:
                self.refuse(name, str(error))

    def done(self, name: str) -> None:
        """Delete a command that was carried out."""
        (self._folder / name).unlink(missing_ok=True)

    def refuse(self, name: str, reason: str) -> None:
        """Move a command that cannot be carried out to `refused/`, with the reason."""
        refused = self._folder / "refused"
        try:
            make_folder(refused)
            durable.write_file(refused / f"{name}.txt", f"{reason}\n")
            (self._folder / name).replace(refused / name)
        except (OSError, ValueError, FolderError) as error:  # for example, `refused` is not a folder
            log.warning("a command could not be moved to inbox/refused: %s", error)
            self._ignored.add(name)

    def close(self) -> None:
        """Close the bell."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None


def read_command(file: Path) -> Command:
    """Read a command from a file that may have been written by anyone."""
    try:
        if file.is_symlink() or not file.is_file():
            raise ValueError("it is not a regular file")
        if file.stat().st_size > MOST_BYTES:
            raise ValueError("it is too large")
        found = json.loads(file.read_bytes())
        json.dumps(found, ensure_ascii=False).encode()  # refuses surrogates, which cannot be encoded
        point, values = found.get("point"), found.get("values", {})
        if found.get("action") not in ACTIONS:
            raise ValueError(f"unknown action {found.get('action')!r}; expected one of {', '.join(ACTIONS)}")
        if found["action"] not in ("add", "scale") and (
            not isinstance(point, int) or isinstance(point, bool)
        ):
            raise ValueError("it does not name a point")
        if not isinstance(values, dict):
            raise ValueError("its values are not a JSON object")
        if found["action"] == "scale" and not _is_count(values.get("workers")):
            raise ValueError(f"it does not name a number of workers from 1 to {MOST_WORKERS}")
        return Command(found["action"], point, values, bool(found.get("weights")), file.name)
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        raise FolderError(f"{file} is not a command: {error}") from error


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST_WORKERS


def number_of(text: str, count: int, ids: Mapping[str, int]) -> int:
    """Return the number of the point that a user names by its number, its name, or the name of a trial."""
    if text.isdecimal() and int(text) < count:
        return int(text)
    found = {number for id, number in ids.items() if id.startswith(text)} if len(text) >= 4 else set()
    if len(found) != 1:
        expected = f"a number below {count}, or the name of a point or trial"
        raise UsageError(
            f"{text!r} is {'not a point of this study' if not found else 'ambiguous'}; expected {expected}"
        )
    return found.pop()
