"""Which executor, on which cores or GPUs."""

from __future__ import annotations

import os
import shutil
import subprocess
from typing import Final

from manyfit.config.study import StudyConfig, count_bytes, seconds
from manyfit.core.errors import UsageError
from manyfit.core.signals import Watch
from manyfit.study.executors.base import Executor, Work
from manyfit.study.executors.inline import Inline
from manyfit.study.executors.processes import Processes, places, usable_cores

IDLE_MEMORY: Final = 500
"""A GPU counts as idle if less than this many MiB are used, and less than a twentieth of its time."""


def choose(study: StudyConfig, work: Work, watch: Watch, trials: int) -> Executor:
    """The executor that a study asks for; `auto` takes processes where there is room for more than one."""
    execute = study.execute
    if execute.on == "inline":
        return Inline(work, watch)
    gpus = chosen_gpus(study)
    threads = study.base.run.train.threads or 1
    found = places(execute.workers, threads, gpus, count_bytes(execute.memory), usable_cores)
    if execute.on == "auto" and (len(found) == 1 or trials == 1):
        return Inline(work, watch)
    return Processes(work, found[: max(1, trials)], seconds(execute.timeout), threads)


def chosen_gpus(study: StudyConfig) -> list[str]:
    """The GPUs that workers are pinned to, by index; none if the trials do not use any."""
    wanted, device = study.execute.gpus, study.base.run.train.device
    if wanted == "none" or not (device == "auto" or device.startswith("cuda")):
        return []
    visible = visible_gpus()
    if wanted == "auto":
        return visible
    if wanted == "idle":
        idle = [gpu for gpu in idle_gpus() if not visible or gpu in visible]
        if not idle:
            raise UsageError("execute.gpus: no GPU is idle; wait, or name the ones to use: gpus: [0, 1]")
        return idle
    missing = [str(gpu) for gpu in wanted if str(gpu) not in visible]
    if missing:
        raise UsageError(f"execute.gpus: there is no GPU {missing[0]}; there are {visible or 'none'}")
    return [str(gpu) for gpu in wanted]


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, by the names that CUDA_VISIBLE_DEVICES takes."""
    import torch

    if not torch.cuda.is_available():
        return []
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in given.split(",") if name.strip()]
    return names or [str(i) for i in range(torch.cuda.device_count())]


def idle_gpus() -> list[str]:
    """GPUs on which nobody computes, as nvidia-smi sees it."""
    program = shutil.which("nvidia-smi")
    if program is None:
        raise UsageError("execute.gpus: idle needs nvidia-smi, which is not here")
    query = "--query-gpu=index,memory.used,utilization.gpu"
    done = subprocess.run(
        [program, query, "--format=csv,noheader,nounits"],
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    rows = [[cell.strip() for cell in line.split(",")] for line in done.stdout.splitlines() if line.strip()]
    return [index for index, memory, busy in rows if _number(memory) < IDLE_MEMORY and _number(busy) < 5]


def _number(text: str) -> float:
    return float(text) if text.replace(".", "", 1).isdecimal() else 0.0
