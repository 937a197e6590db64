"""Which GPUs this process may see. It has to be said before any library looks for them."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
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
    """The GPUs of this machine, as its driver lists them; none if there is no driver."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return []
    fields = "index,memory.used,memory.total,utilization.gpu"
    command = [program, f"--query-gpu={fields}", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except subprocess.TimeoutExpired:
        raise UsageError("--gpu: nvidia-smi does not answer") from None
    every = parsed(found.stdout) if found.returncode == 0 else []
    # Whoever started this process may have given it some of them only.
    given = [
        word for word in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if word.strip().isdecimal()
    ]
    return [gpu for gpu in every if not given or gpu.number in map(int, given)]


def parsed(text: str) -> list[Gpu]:
    """Read what the driver's program prints.

    >>> parsed("0, 3, 100, 7\\n")[0].is_idle
    True
    """
    made = []
    for line in text.splitlines():
        number, used, total, work = (cell.strip() for cell in line.split(","))
        part = float(used) / float(total) if _is_number(used) and _is_number(total) else 0.0
        made.append(Gpu(int(number), part, float(work) if _is_number(work) else 0.0))
    return made


def _is_number(text: str) -> bool:
    return text.replace(".", "", 1).isdecimal()


def pin(wanted: Sequence[str]) -> list[int]:
    """Let this process and its children see these GPUs alone; `idle` is the next one that is free."""
    here = gpus()
    if not here:
        raise UsageError("--gpu: there is no GPU here (nvidia-smi lists none)")
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
