"""Worker processes that do not outlive the process that started them."""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import os
import signal
import sys
import weakref
from collections.abc import Iterable, Iterator
from multiprocessing import util
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from manyfit.core.processes import die_with_parent

T = TypeVar("T")

ASKING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))

END_FIRST = 100
"""A priority at exit: before anything that waits for the workers."""

_live: weakref.WeakSet[Any] = weakref.WeakSet()
_workers: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
_registered = 0


def follow_parent(parent: int, worker: int = 0) -> None:
    """Leave signals to the process `parent`, and end when it ends, however that happens.

    The parent says who it is: a worker that first runs after its parent has died cannot find out.
    Linux sees to the rest; elsewhere torch's own workers notice it after some seconds.
    """
    for number in ASKING:
        # A scheduler signals the whole group. The parent decides what follows; its workers end with it.
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)
    die_with_parent()
    if sys.platform == "linux" and os.getppid() != parent:  # it has ended already, before the request
        os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def hold_signals() -> Iterator[None]:
    """Hold signals back while workers are forked: one that has not yet learned to ignore them would die.

    A worker inherits what is held back, and lets go of it in `follow_parent`; here they are delivered after.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ASKING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def iterate(loader: Iterable[T]) -> Iterator[T]:
    """Iterate over a loader whose workers end with this process, whoever still holds the iterator then.

    At exit Python ends daemons by SIGTERM, which these leave to their parent, and then waits for them.
    """
    global _registered
    before = set(multiprocessing.active_children())
    with hold_signals():
        batches = iter(loader)
    _live.add(batches)
    _workers.update(set(multiprocessing.active_children()) - before)
    if _registered != os.getpid():
        _registered = os.getpid()
        atexit.register(_end_all)  # of an interpreter
        util.Finalize(None, _end_all, exitpriority=END_FIRST)  # of a process of multiprocessing
    return batches


def _end_all() -> None:
    if _registered != os.getpid():
        return  # a fork of the process that they belong to
    for batches in list(_live):
        batches.__del__()  # the loader's own way to end them, which gives those that are busy some seconds
    for worker in list(_workers):  # also those whose iterator is gone, but which hang
        worker.kill()
