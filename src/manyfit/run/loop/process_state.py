"""State of a process that the code of a run may change, and that must not reach another run."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch

LIMITS: Final = (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_AS, resource.RLIMIT_DATA,
                 resource.RLIMIT_CPU, resource.RLIMIT_STACK, resource.RLIMIT_CORE)  # fmt: skip
MODES: Final[tuple[tuple[Callable[[], Any], Callable[[Any], Any]], ...]] = (
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_default_dtype, torch.set_default_dtype),
    (torch.get_default_device, torch.set_default_device),
    (torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly),
    (torch.get_num_threads, torch.set_num_threads),
)
"""How a mode of torch is read, and how it is set."""


def read_process_state() -> Any:
    """Return everything that `own_process` gives back."""
    mask = os.umask(0)
    os.umask(mask)
    limits = [resource.getrlimit(number) for number in LIMITS]
    return [get() for get, _ in MODES], os.getcwd(), _environment(), limits, mask  # noqa: PTH109


@contextmanager
def own_process() -> Iterator[None]:
    """Give a process back what it was: torch's modes, its folder, environment, umask and soft limits.

    What was imported stays, and so do classes that were changed; a hard limit cannot be raised again.
    """
    modes = [get() for get, _ in MODES]
    here, environment = os.getcwd(), _environment()  # noqa: PTH109
    limits = [resource.getrlimit(number) for number in LIMITS]
    mask = os.umask(0)
    os.umask(mask)
    try:
        yield
    finally:
        for (get, set_), before in zip(MODES, modes, strict=True):
            if get() != before:
                set_(before)
        now = _environment()
        if now != environment:
            for name in now.keys() - environment.keys():
                del os.environb[name]
            os.environb.update({n: value for n, value in environment.items() if now.get(n) != value})
        for number, (soft, hard) in zip(LIMITS, limits, strict=True):
            if resource.getrlimit(number)[0] != soft:
                with contextlib.suppress(ValueError, OSError):
                    resource.setrlimit(number, (soft, hard))
        os.umask(mask)
        os.chdir(here)


def _environment() -> dict[bytes, bytes]:
    """A copy of the environment. `os.environ.copy()` decodes all of it, which a trial would feel."""
    data: dict[bytes, bytes] | None = getattr(os.environ, "_data", None)
    return dict(os.environb if data is None else data)
