"""Worker processes that do not outlive the process that started them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def die_with_parent(worker: int = 0) -> None:
    """Ask Linux to end this process when its parent ends, however that happens.

    Elsewhere torch's own workers notice it after some seconds.
    """
    if sys.platform != "linux":
        return
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it has ended already, before the request was made
        os.kill(os.getpid(), signal.SIGKILL)
