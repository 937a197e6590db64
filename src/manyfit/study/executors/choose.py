"""The choice of the executor, and of its cores or GPUs."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Annotated

from annotated_types import Gt

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
    """Return worker processes if more than one trial can train at once, or else the inline executor."""
    found = worker_places(job.study)
    return inline(job) if len(found) == 1 or job.trials == 1 else processes(job)


def inline(job: Job) -> Executor:
    """Return the executor in the driver's process, one unit after another."""
    return Inline(job.work, job.watch)


def processes(job: Job) -> Executor:
    """Return the executor in processes on this machine, each with some cores or a GPU."""
    found = worker_places(job.study)[: max(1, job.trials)]
    return Processes(job.work, found, seconds(job.study.execute.timeout), threads_of(job.study))


def ray(
    job: Job,
    address: str | None = None,
    resources: Mapping[str, Annotated[float, Gt(0)]] | None = None,
    replicas: Annotated[int, Gt(0)] = 1,
    environment: Sequence[str] = (),
    autoscales: bool = False,
) -> Executor:
    """Return the executor on a Ray cluster: that of `address` or RAY_ADDRESS, or else a local one.

    `resources` are custom resources of a worker, `replicas` is on how many workers each shard is kept, and
    `environment` has the names of variables, which may be secrets, that workers get from the driver. With
    `autoscales`, a study waits for nodes that the cluster adds; otherwise, too few are an error.
    """
    from manyfit.study.executors.ray_study import ray_executor

    return ray_executor(job, address, resources or {}, replicas, environment, autoscales)


def worker_places(study: StudyConfig) -> list[Place]:
    """Return the place of each worker."""
    if study.execute.cpus is not None:
        raise UsageError("execute.cpus is read by execute.on: ray; otherwise, set execute.threads")
    execute, memory = study.execute, count_bytes(study.execute.memory)
    return places(execute.workers, threads_of(study), choose_gpus(study), memory, usable_cores)


def threads_of(study: StudyConfig) -> int:
    """Return the number of threads of a trial."""
    return study.base.run.train.threads or 1


def choose_gpus(study: StudyConfig) -> list[str]:
    """Return the GPUs that workers are pinned to, by index; none if the trials do not use any."""
    wanted, device = study.execute.gpus, study.base.run.train.device
    if wanted == "none" or not (device == "auto" or device.startswith("cuda")):
        return []
    visible = visible_gpus()
    if isinstance(wanted, float | int):
        if wanted > 1:
            raise UsageError("execute.gpus: a worker trains on one GPU; give a number of at most 1")
        return visible * int(1 / wanted + 1e-9)
    if wanted == "auto":
        return visible
    if wanted == "idle":
        idle = [str(gpu.number) for gpu in gpus() if gpu.is_idle]
        if not idle:
            raise UsageError("execute.gpus: no GPU is idle; wait, or list the GPUs to use: gpus: [0, 1]")
        return idle
    missing = [str(gpu) for gpu in wanted if str(gpu) not in visible]
    if missing:
        raise UsageError(f"execute.gpus: there is no GPU {missing[0]}; available: {visible or 'none'}")
    return [str(gpu) for gpu in wanted]


def visible_gpus() -> list[str]:
    """Return the GPUs that this process may use, named as in CUDA_VISIBLE_DEVICES."""
    import torch

    if not torch.cuda.is_available():
        return []
    given = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name.strip() for name in given.split(",") if name.strip()]
    return names or [str(i) for i in range(torch.cuda.device_count())]
