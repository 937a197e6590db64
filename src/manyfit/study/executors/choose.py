"""Which executor, on which cores or GPUs."""

from __future__ import annotations

import os

from manyfit.config.study.quantities import count_bytes, seconds
from manyfit.config.study.study import StudyConfig
from manyfit.core.errors import UsageError
from manyfit.core.gpus import gpus
from manyfit.core.signals import Watch
from manyfit.study.executors.base import Executor, Job, Work
from manyfit.study.executors.guarded import Guarded
from manyfit.study.executors.inline import Inline
from manyfit.study.executors.processes import Processes, places, usable_cores
from manyfit.study.executors.worker import Place


def choose(study: StudyConfig, work: Work, watch: Watch, trials: int) -> Executor:
    """Return the executor that a study asks for."""
    job, on = Job(study, work, watch, trials), study.execute.on
    if on is None:
        return auto(job)
    made: Executor = on.build(job=job)
    return made if on.path.startswith("manyfit.executors.") else Guarded(made)


def auto(job: Job) -> Executor:
    """Take processes where there is room for more than one trial at once."""
    found = worker_places(job.study)
    return inline(job) if len(found) == 1 or job.trials == 1 else processes(job)


def inline(job: Job) -> Executor:
    """Train in the process of the driver, one unit after another."""
    return Inline(job.work, job.watch)


def processes(job: Job) -> Executor:
    """Train in processes of this machine, each on some cores or a GPU."""
    found = worker_places(job.study)[: max(1, job.trials)]
    return Processes(job.work, found, seconds(job.study.execute.timeout), threads_of(job.study))


def worker_places(study: StudyConfig) -> list[Place]:
    """Return where workers compute."""
    execute, memory = study.execute, count_bytes(study.execute.memory)
    return places(execute.workers, threads_of(study), choose_gpus(study), memory, usable_cores)


def threads_of(study: StudyConfig) -> int:
    """Return how many threads a trial uses."""
    return study.base.run.train.threads or 1


def choose_gpus(study: StudyConfig) -> list[str]:
    """The GPUs that workers are pinned to, by index; none if the trials do not use any."""
    wanted, device = study.execute.gpus, study.base.run.train.device
    if wanted == "none" or not (device == "auto" or device.startswith("cuda")):
        return []
    visible = visible_gpus()
    if wanted == "auto":
        return visible
    if wanted == "idle":
        idle = [str(gpu.number) for gpu in gpus() if gpu.is_idle]
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
