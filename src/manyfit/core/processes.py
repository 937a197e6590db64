"""Processes that do not outlive the one that has started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from multiprocessing import forkserver
from typing import Any

PR_SET_PDEATHSIG = 1


def die_with_parent() -> None:
    """Have this process killed when the one that has started it ends. On Linux; elsewhere nothing happens."""
    if sys.platform == "linux":
        parent = os.getppid()
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it has ended meanwhile, and so no signal comes
            os.kill(os.getpid(), signal.SIGKILL)


def let_the_server_end() -> None:
    """Let go of the pipe that keeps the fork server alive for as long as its children live.

    With it closed, the server ends when the driver does, however that happens, and this process with it.
    """
    server: Any = forkserver._forkserver
    alive = getattr(server, "_forkserver_alive_fd", None)
    if alive is not None:
        os.close(alive)
        server._forkserver_alive_fd = None


def die_with_server() -> None:
    """In a process of a fork server: end when whoever has started that server ends."""
    die_with_parent()
    let_the_server_end()
