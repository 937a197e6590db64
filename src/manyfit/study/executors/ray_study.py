"""The part of a Ray cluster that a study uses, and what it sends there."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from manyfit.config.study.quantities import count_bytes, seconds
from manyfit.config.study.study import StudyConfig
from manyfit.config.tree.nodes import plain
from manyfit.core.errors import UsageError
from manyfit.core.redaction import PATTERN, find_secrets, remember
from manyfit.study.executors.base import Executor, Job
from manyfit.study.executors.processes import usable_cores
from manyfit.study.executors.ray_cluster import Cluster, Need, Share
from manyfit.study.executors.ray_executor import RayExecutor
from manyfit.study.executors.ray_worker import Equipment
from manyfit.study.executors.shipment import Shipment, name_base

ALSO: Final = ("KERAS_BACKEND",)
"""Environment variables that change results, and are therefore the same on every node."""


def ray_executor(
    job: Job,
    address: str | None,
    resources: Mapping[str, float],
    replicas: int,
    environment: Sequence[str],
    autoscales: bool = False,
) -> Executor:
    """Return the executor of a study on a Ray cluster."""
    study = job.study
    variables = read_environment(study, environment)
    check_resources(resources)
    cluster = Cluster(address, local_cpus(study))
    try:
        need = need_of(study, cluster, resources)
        base = getattr(job.work, "base", "")
        shipment, equipment = Shipment(), Equipment(b"")
        if base:
            shipment = Shipment(study.base, Path(base), list_values(study))
            project = str(study.base.project.resolve())
            equipment = Equipment(b"", (), name_base(study.base, Path(base)), relative_cwd(study), project)
        execute, threads = study.execute, study.base.run.train.threads or 1
        return RayExecutor(
            job.work, cluster, Share(execute.workers, max(1, job.trials), need, autoscales), shipment,
            equipment.for_units(count_bytes(execute.memory), seconds(execute.timeout), threads),
            variables, replicas, job.watch,
        )  # fmt: skip
    except BaseException:
        cluster.close()
        raise


def check_resources(resources: Mapping[str, float]) -> None:
    """Raise an error for resources that are not custom ones."""
    for name, setting in (("CPU", "execute.cpus"), ("GPU", "execute.gpus"), ("memory", "execute.memory")):
        if name in resources:
            raise UsageError(f"execute.on.resources: {name} is not a custom resource; set {setting}")


def list_values(study: StudyConfig) -> dict[str, list[Any]]:
    """Return the values that the options of the search space give to each key."""
    found: dict[str, list[Any]] = {}
    for axis in study.space.axes:
        for option in axis.options:
            for key, node in option.items():
                found.setdefault(key, []).append(plain(node))
    return found


def local_cpus(study: StudyConfig) -> int:
    """Return the CPUs of a local cluster: the cores of this machine, or as many as its workers ask for."""
    each = study.execute.cpus or float(study.base.run.train.threads or 1)
    return max(len(usable_cores()), round((study.execute.workers or 1) * each))


def need_of(study: StudyConfig, cluster: Cluster, resources: Mapping[str, float]) -> Need:
    """Return the resources of a worker."""
    execute, train = study.execute, study.base.run.train
    cpus = execute.cpus if execute.cpus is not None else float(train.threads or 1)
    return Need(cpus, count_gpus(study, cluster), dict(resources))


def count_gpus(study: StudyConfig, cluster: Cluster) -> float:
    """Return the GPUs of a worker: one if the cluster has some and the trials may use them."""
    wanted, device = study.execute.gpus, study.base.run.train.device
    if wanted == "none" or not (device == "auto" or device.startswith("cuda")):
        return 0.0
    if isinstance(wanted, int | float):
        if wanted > 1:
            raise UsageError("execute.gpus: a worker trains on one GPU; give a number of at most 1")
        return float(wanted)
    if wanted != "auto":
        raise UsageError(
            f"execute.gpus: {wanted!r} selects GPUs of this machine; on Ray, give the part of a GPU that "
            "each worker uses, such as 1 or 0.5"
        )
    has_gpus = any(node.resources.get("GPU", 0.0) >= 1 for node in cluster.nodes())
    return 1.0 if has_gpus else 0.0


def read_environment(study: StudyConfig, names: Sequence[str]) -> dict[str, str]:
    """Return the environment variables that workers get: those that the config reads, and those named."""
    text = str(plain(study.base.given.tree))
    read = {*PATTERN.findall(text), *study.base.environment}
    missing = [name for name in names if name not in os.environ]
    if missing:
        raise UsageError(f"environment: there is no environment variable {missing[0]}")
    for name in find_secrets(names):
        remember(name, os.environ[name])
    wanted = {*read, *names, *(name for name in ALSO if name in os.environ)}
    return {name: os.environ[name] for name in sorted(wanted) if name in os.environ}


def relative_cwd(study: StudyConfig) -> str:
    """Return the working directory relative to the project, if it is inside."""
    here, project = Path.cwd().resolve(), study.base.project.resolve()
    return str(here.relative_to(project)) if here.is_relative_to(project) else ""
