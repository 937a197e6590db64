"""Prepared rows on a node that does not have them: files of a layout are requested when they are read."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from manyfit.data.prepared import REQUESTS
from manyfit.study.executors.node_files import Delivered, NodeFiles

MOST_TEXT: Final = 4000
"""Bytes of an answer: writing fewer than a pipe holds at least is atomic."""


@dataclass(frozen=True)
class PartRequest:
    """A file with prepared rows that a worker needs."""

    name: str
    """The folder of the prepared data, relative to the project."""
    part: str
    reply: str
    """The name of the pipe through which the process that reads it gets the answer."""


class PartSupply:
    """The requests of the processes of one worker; see `manyfit.data.prepared.request_part`.

    Files that another worker of the node has, or that ETL has made here, are not requested from the driver.
    """

    def __init__(self, files: NodeFiles, project: Path, delivered: Sequence[Delivered]) -> None:
        self._files = files
        self._folders: dict[str, Path] = {}
        self._keys: dict[tuple[str, str], str] = {}
        self._open: dict[int, tuple[str, bytes]] = {}
        """The pipes, with the folder that each belongs to and the beginning of an incomplete request."""
        for each in delivered:
            if each.layout is not None:
                folder = project / each.name / each.layout
                self._folders[each.name] = folder
                self._keys |= {(each.name, part): key for part, key in each.parts.items()}
                os.mkfifo(folder / REQUESTS, 0o600)
                flags = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC  # with a writer, it never ends
                self._open[os.open(folder / REQUESTS, flags)] = each.name, b""

    @property
    def descriptors(self) -> list[int]:
        """File descriptors that become readable when there is a request."""
        return list(self._open)

    def take_requests(self) -> list[PartRequest]:
        """Return requests for files that are not on this node; the others are answered."""
        found = []
        for descriptor, (name, begun) in list(self._open.items()):
            data = begun
            with contextlib.suppress(BlockingIOError):
                data += os.read(descriptor, 65536)
            *lines, rest = data.split(b"\n")
            self._open[descriptor] = name, rest
            for line in lines:
                reply, _, part = line.decode().partition(" ")
                request, key = PartRequest(name, part, reply), self._keys.get((name, part))
                if key is None:
                    self._answer(request, "it is not part of the prepared data")
                elif (here := self._files.find_part(key)) is None:
                    found.append(request)
                else:
                    self._link(request, here)
        return found

    def supply(self, request: PartRequest, sent: Delivered | None, problem: str = "") -> None:
        """Take over a file that the driver sends; without one, `problem` says why."""
        if sent is None:
            self._answer(request, problem or "the driver does not have it")
            return
        try:
            self._link(request, self._files.add_part(sent))
        except Exception as error:  # a full disk, a lost object: the process that waits says so
            self._answer(request, f"{type(error).__name__}: {error}")

    def _link(self, request: PartRequest, here: Path) -> None:
        with contextlib.suppress(FileExistsError):  # two processes have requested it
            (self._folders[request.name] / request.part).symlink_to(here)
        self._answer(request, "")

    def _answer(self, request: PartRequest, problem: str) -> None:
        reply = self._folders[request.name] / request.reply
        with contextlib.suppress(OSError):  # the process that asked is gone
            pipe = os.open(reply, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            try:
                os.write(pipe, problem.replace("\n", " ").encode()[:MOST_TEXT] + b"\n")
            finally:
                os.close(pipe)

    def close(self) -> None:
        """Close the pipes."""
        for descriptor in self._open:
            os.close(descriptor)
        self._open.clear()
