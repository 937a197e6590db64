"""Worker processes that do not outlive the process that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def follow_parent(parent: int, worker: int = 0) -> None:
    """Leave signals to the process `parent`, and end when it ends, however that happens.

    The parent says who it is: a worker that first runs after its parent has died cannot find out.
    Linux sees to the rest; elsewhere torch's own workers notice it after some seconds.
    """
    for name in ("SIGINT", "SIGTERM", "SIGUSR1"):
        # A scheduler signals the whole group. The parent decides what follows; its workers end with it.
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already, before the request was made
        os.kill(os.getpid(), signal.SIGKILL)
