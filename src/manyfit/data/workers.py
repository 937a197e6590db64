"""Worker processes that do not outlive the process that started them."""

from __future__ import annotations

import atexit
import contextlib
import functools
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
from manyfit.data.randomness import own_randomness

T = TypeVar("T")

ASKING = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGUSR1") if hasattr(signal, name))

END_FIRST = 100
"""The exit priority: before anything that waits for the workers."""

_live: weakref.WeakSet[Any] = weakref.WeakSet()
_workers: weakref.WeakSet[BaseProcess] = weakref.WeakSet()
_registered = 0


def follow_parent(parent: int, worker: int = 0) -> None:
    """Leave signals to the process `parent`, and exit when it ends for any reason.

    The parent passes its process ID: a worker that starts after its parent died could not find it out.
    Linux does the rest; on other systems, torch's workers notice the end after some seconds.
    """
    for number in ASKING:
        # A scheduler signals the whole process group. The parent reacts to it; its workers end with it.
        signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, ASKING)
    die_with_parent()
    if sys.platform == "linux" and os.getppid() != parent:  # it ended before die_with_parent()
        os.kill(os.getpid(), signal.SIGKILL)


@contextlib.contextmanager
def hold_signals() -> Iterator[None]:
    """Block signals while workers are forked: a worker that does not ignore them yet would be killed.

    A worker inherits the blocked signals and unblocks them in `follow_parent`; the parent does so on exit.
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
    """Iterate over a loader whose workers end with this process, even if the iterator is still referenced.

    At exit, Python sends SIGTERM to daemon processes and waits for them, but these workers ignore SIGTERM.
    """
    global _registered
    before = set(multiprocessing.active_children())
    with hold_signals():
        batches = iter(loader)
    _live.add(batches)
    _workers.update(set(multiprocessing.active_children()) - before)
    if _registered != os.getpid():
        _registered = os.getpid()
        atexit.register(_end_all)  # in the main process
        util.Finalize(None, _end_all, exitpriority=END_FIRST)  # in a process started by multiprocessing
    return batches


def read_in_workers(dataset: Any, workers: int, **how: Any) -> Iterator[Any]:
    """Return what a loader of torch yields whose workers end with this process; `how` are its options."""
    from torch.utils.data import DataLoader

    loader: Any = DataLoader(
        dataset,
        num_workers=workers,
        worker_init_fn=functools.partial(follow_parent, os.getpid()),
        multiprocessing_context="fork" if sys.platform == "linux" else None,
        prefetch_factor=4,
        **how,
    )
    with own_randomness():  # starting the workers draws from torch's generator
        return iterate(loader)


def _end_all() -> None:
    if _registered != os.getpid():
        return  # a fork of the process that owns the workers
    for batches in list(_live):
        batches.__del__()  # the loader's own shutdown, which allows busy workers some seconds
    for worker in list(_workers):  # including workers that hang after their iterator was deleted
        worker.kill()
