"""Which GPUs this process may see. It has to be said before any library looks for them."""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Final

from manyfit.core.errors import UsageError

PINNED: Final = "MANYFIT_GPU"
"""Tells this process and its children that GPUs were asked for."""
IDLE_MEMORY: Final = 0.05
"""A GPU that has less than this part of its memory in use …"""
IDLE_WORK: Final = 10
"""… and works less than this many percent of the time, is idle."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of this machine, and how busy it is."""

    number: int
    used: float
    """The part of its memory that is in use."""
    work: float
    """Percent of the time in which it computes."""

    @property
    def is_idle(self) -> bool:
        """Whether nobody seems to use it."""
        return self.used < IDLE_MEMORY and self.work < IDLE_WORK


def gpus() -> list[Gpu]:
    """Return the GPUs that this process may use, numbered as by the driver; none without a driver."""
    nvml = importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # there is no driver here
        return []
    try:
        every = [_look_at(nvml, number) for number in range(nvml.nvmlDeviceGetCount())]
    finally:
        nvml.nvmlShutdown()
    # Whoever started this process may have given it some of them only.
    given = [
        word for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip().isdecimal()
    ]
    return [gpu for gpu in every if not given or gpu.number in map(int, given)]


def _look_at(nvml: ModuleType, number: int) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(number)
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    try:
        work = float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)
    except nvml.NVMLError:  # of a GPU that is cut into instances: then its memory decides
        work = 0.0
    return Gpu(number, memory.used / memory.total if memory.total else 0.0, work)


def pin(wanted: Sequence[str], here: Sequence[Gpu] | None = None) -> list[int]:
    """Let this process and its children see these GPUs alone; `idle` is the next one that is free.

    `here` are the GPUs that there are; by default, those of this machine.
    """
    here = gpus() if here is None else here
    if not here:
        raise UsageError("--gpu: there is no GPU here")
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
            raise UsageError(f"--gpu: there is no GPU {word!r}; there are {known}, or idle")
    os.environ[PINNED] = ",".join(wanted)
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as the driver counts them
    os.environ["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, dict.fromkeys(chosen)))
    return chosen
