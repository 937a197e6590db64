"""Processes that do not outlive their parent, and do not run its script again."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from multiprocessing import forkserver
from typing import Any

PR_SET_PDEATHSIG = 1


def die_with_parent(parent: int | None = None) -> None:
    """Have this process killed when its parent ends. Only on Linux; no effect elsewhere.

    `parent` is its process ID; without it, a parent that has already ended is not noticed.
    """
    if sys.platform == "linux":
        parent = parent or os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # the parent ended before prctl, so no signal will arrive
            os.kill(os.getpid(), signal.SIGKILL)


def let_the_server_end() -> None:
    """Close the pipe that keeps the fork server alive while its children are.

    The server then ends when the driver ends, for whatever reason, and this process with it.
    """
    server: Any = forkserver._forkserver
    alive = getattr(server, "_forkserver_alive_fd", None)
    if alive is not None:
        os.close(alive)
        server._forkserver_alive_fd = None


def die_with_server() -> None:
    """End this child of a fork server when the process that started the server ends."""
    die_with_parent()
    let_the_server_end()


@contextlib.contextmanager
def without_main() -> Iterator[None]:
    """Hide the main script, so that workers do not run it again: they do not need it."""
    main = sys.modules["__main__"]
    names: tuple[str, ...] = ("__file__", "__spec__")
    hidden = {name: main.__dict__.pop(name) for name in names if name in main.__dict__}
    main.__spec__ = None
    try:
        yield
    finally:
        main.__dict__.update(hidden)
