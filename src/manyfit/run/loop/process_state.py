"""Process-wide state that the code of a run may change, and that must not leak into another run."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import numpy as np
import torch

LIMITS: Final = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS, resource.RLIMIT_DATA,
                 resource.RLIMIT_CPU, resource.RLIMIT_STACK, resource.RLIMIT_CORE)  # fmt: skip
MODES: Final[tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...]] = (
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, torch.set_default_device),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (torch.get_num_threads, torch.set_num_threads),
    (partial(torch.is_autocast_enabled, "cpu"), partial(torch.set_autocast_enabled, "cpu")),
    (partial(torch.is_autocast_enabled, "cuda"), partial(torch.set_autocast_enabled, "cuda")),
    *(
        (partial(getattr, backend, name), partial(setattr, backend, name))
        for backend, name in (
            (torch.backends.mkldnn, "enabled"),
            (torch.backends.cudnn, "benchmark"),
            (torch.backends.cudnn, "deterministic"),
        )
    ),
    (np.geterr, lambda kinds: np.seterr(**kinds)),
    (lambda: logging.root.manager.disable, logging.disable),
)
"""The getter and the setter of each mode of torch, NumPy and logging."""


@dataclass(frozen=True, slots=True)
class ProcessState:
    """The torch modes, working directory, environment, soft resource limits and umask of a process.

    Imported modules and modified classes are not part of it; a hard limit cannot be raised again.
    """

    modes: Sequence[Any]
    folder: str | None
    """None if it was removed."""
    environment: Mapping[bytes, bytes]
    limits: Sequence[tuple[int, int]]
    mask: int

    @staticmethod
    def read() -> ProcessState:
        """Return the state of this process."""
        mask = os.umask(0)  # the umask can only be read by setting it
        os.umask(mask)
        limits = [resource.getrlimit(number) for number in LIMITS]
        return ProcessState([get() for get, _ in MODES], _working_directory(), _environment(), limits, mask)

    def restore(self) -> None:
        """Restore this state in the current process."""
        for (get, set_), before in zip(MODES, self.modes, strict=True):
            if get() != before:
                set_(before)
        now = _environment()
        if now != self.environment:
            for name in now.keys() - self.environment.keys():
                del os.environb[name]
            changed = {name: value for name, value in self.environment.items() if now.get(name) != value}
            os.environb.update(changed)
        for number, (soft, hard) in zip(LIMITS, self.limits, strict=True):
            if resource.getrlimit(number)[0] != soft:
                with contextlib.suppress(ValueError, OSError):
                    resource.setrlimit(number, (soft, hard))
        os.umask(self.mask)
        if self.folder is not None:
            with contextlib.suppress(FileNotFoundError):
                os.chdir(self.folder)


@contextmanager
def own_process() -> Iterator[None]:
    """Restore the state of the process on exit."""
    before = ProcessState.read()
    try:
        yield
    finally:
        before.restore()


def _environment() -> dict[bytes, bytes]:
    """Return a copy of the environment. `os.environ.copy()` decodes it, which is slow for short trials."""
    data: dict[bytes, bytes] | None = getattr(os.environ, "_data", None)
    return dict(os.environb if data is None else data)


def _working_directory() -> str | None:
    try:
        return os.getcwd()  # noqa: PTH109
    except FileNotFoundError:
        return None
