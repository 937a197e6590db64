"""The GPUs that this process may use. They have to be set before any library looks for GPUs."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Final

from manyfit.core.errors import UsageError

PINNED: Final = "MANYFIT_GPU"
"""Environment variable that tells this process and its children that GPUs were requested."""
IDLE_MEMORY: Final = 0.05
"""A GPU is idle if less than this fraction of its memory is in use …"""
IDLE_WORK: Final = 10
"""… and its utilization is below this percentage."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this machine, and its load."""

    number: int
    used: float
    """The fraction of its memory that is in use."""
    work: float
    """Its utilization in percent."""

    @property
    def is_idle(self) -> bool:
        """Whether it appears to be unused."""
        return self.used < IDLE_MEMORY and self.work < IDLE_WORK


def gpus() -> list[Gpu]:
    """Return the GPUs that this process may use, numbered as by the driver; none without a driver."""
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # no driver
        return []
    try:
        every = [_look_at(nvml, number) for number in range(nvml.nvmlDeviceGetCount())]
    finally:
        nvml.nvmlShutdown()
    # The parent process may have restricted the GPUs.
    given = [
        word for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip().isdecimal()
    ]
    return [gpu for gpu in every if not given or gpu.number in map(int, given)]


def _look_at(nvml: ModuleType, number: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(number)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    try:
        work = float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except nvml.NVMLError:  # unknown for a partitioned GPU (MIG): decide by memory alone
        work = 0.0
    return Gpu(number, memory.used / memory.total if memory.total else 0.0, work)


def pin(wanted: Sequence[str], here: Sequence[Gpu] | None = None) -> list[int]:
    """Restrict this process and its children to these GPUs; `idle` selects the next unused one.

    `here` are the available GPUs; by default, those of this machine.
    """
    here = gpus() if here is None else here
    if not here:
        raise UsageError("--gpu: this machine has no GPU")
    chosen: list[int] = []
    for word in wanted:
        if word == "idle":
            free = [gpu.number for gpu in here if gpu.is_idle and gpu.number not in chosen]
            if not free:
                raise UsageError("--gpu idle: every GPU is in use")
            chosen.append(free[0])
        elif word.isdecimal() and int(word) in [gpu.number for gpu in here]:
            chosen.append(int(word))
        else:
            known = ", ".join(str(gpu.number) for gpu in here)
            raise UsageError(f"--gpu: there is no GPU {word!r}; available are {known}, or idle")
    os.environ[PINNED] = ",".join(wanted)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # the numbering of the driver
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, dict.fromkeys(chosen)))
    return chosen
