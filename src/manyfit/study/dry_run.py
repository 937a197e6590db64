"""`--dry-run`: what a study would train, whether it can be trained, and the time and disk space it takes."""

from __future__ import annotations

import contextlib
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

from manyfit.config import Config
from manyfit.config.study.study import StudyConfig, load_study
from manyfit.config.tree.overrides import Overrides
from manyfit.core.errors import ManyfitError
from manyfit.core.names import format_size, pluralize
from manyfit.core.signals import Watch
from manyfit.run.check import Finding
from manyfit.study.drive.display import duration
from manyfit.study.drive.rehearsal import count_shards, explain_failed, rehearsals
from manyfit.study.executors.inline import Inline
from manyfit.study.executors.processes import places, usable_cores
from manyfit.study.ledger.reader import read_only
from manyfit.study.result import select_seeds
from manyfit.study.search.plan import StudyPlan, plan_study
from manyfit.study.work.folder import StudyFolder
from manyfit.study.work.hops import place_shards
from manyfit.study.work.records import PointRecord
from manyfit.study.work.training import Training
from manyfit.study.work.units import Failure

EACH: Final = 0.05
START: Final = 4.0
"""Overhead in seconds per trial, and for starting the workers: rough; it matters for tiny studies only."""


def dry_run(place: Path, overrides: Overrides = ()) -> dict[str, Any]:
    """Check every point and build one of each structure, without writing anything."""
    study = load_study(place, overrides)
    folder = StudyFolder(study.folder)
    before: list[PointRecord] = []
    if folder.ledger.is_file():
        points, facts, _ = read_only(folder.ledger)
        before = select_seeds(points, facts)
    found = plan_study(study, [point for point in before if point.origin == "asked"])
    failed = _rehearse(study, found)
    if failed:
        raise explain_failed(failed, found.structures)
    shards = count_shards(study, found)
    workers, placement = count_workers(study), dict[str, str]()
    if study.execute.is_ray:
        from manyfit.study.executors.ray_survey import describe_placement

        state = _mean([facts["bytes"] for facts in found.facts])
        visits = study.base.run.train.epochs * shards["shards"] if study.execute.hop else 1
        workers, placement = describe_placement(study, found.trials, state, visits)
    summary = _summary(study, found, before, workers)
    if study.execute.hop:
        summary["shown"]["hopping"] = describe_hopping(study, shards["shards"], workers)
    summary["shown"] |= placement
    return summary


def count_workers(study: StudyConfig) -> int:
    """Return how many workers a study has on this machine."""
    if study.execute.is_inline:
        return 1
    threads = study.base.run.train.threads or 1
    return len(places(study.execute.workers, threads, [], None, usable_cores))


def check_study(place: Path, overrides: Overrides = ()) -> Iterator[Finding]:
    """Check a study as `dry_run` does; yield what was found."""
    try:
        found = dry_run(place, overrides)
    except ManyfitError as error:
        yield Finding("study", False, str(error))
        return
    for name, text in found["shown"].items():
        yield Finding(name, True, text)


def describe_fusing(study: StudyConfig, found: StudyPlan) -> str:
    """Describe which structures can be trained in one pass with others, and why others cannot."""
    reasons = Counter(facts["not_fused"] for facts in found.facts if facts.get("not_fused"))
    count = len(found.facts) - reasons.total()
    text = f"{count} of {pluralize(len(found.facts), 'tried structure')} can be trained in one pass"
    return "; ".join([text, *(f"{number} not: {reason}" for reason, number in reasons.items())])


def describe_hopping(study: StudyConfig, shards: int, workers: int) -> str:
    """Describe which worker has which shards."""
    held = place_shards([f"worker {number}" for number in range(workers)], shards)
    shown = [f"{each.name} has {', '.join(map(str, each.shards))}" for each in held[:8]]
    more = f", and {len(held) - 8} more workers" if len(held) > 8 else ""
    where = f": {'; '.join(shown)}{more}" if workers > 1 else ""
    return f"{pluralize(shards, 'shard')}, in {study.execute.order} order{where}"


def _rehearse(study: StudyConfig, found: StudyPlan) -> dict[str, Failure]:
    """Rehearse in this process, from the config in memory: a dry run writes no files."""
    engine = Inline(
        _InMemory("", study.objective.metric, fuse=study.execute.fuse, study_config=study), Watch()
    )
    with contextlib.closing(engine):
        return rehearsals(study, found, engine, found.structures)


@dataclass(frozen=True)
class _InMemory(Training):
    """Trains from a base config in memory."""

    study_config: StudyConfig | None = None
    explains_fusing: ClassVar[bool] = True

    def config(self) -> Config:
        """Return the base of the loaded study."""
        assert self.study_config is not None
        return self.study_config.base


def _summary(study: StudyConfig, found: StudyPlan, before: list[PointRecord], workers: int) -> dict[str, Any]:
    epochs, seeds = study.base.run.train.epochs, len(study.seeds)
    done = sum(min(trial.epoch, epochs) for point in before for trial in point.trials)
    todo = max(0.0, found.planned * seeds * epochs - done)
    facts = found.facts
    per_epoch = _mean([f["epoch_seconds"] for f in facts])
    size = _mean([f["bytes"] for f in facts])
    kept = min(found.planned, study.execute.keep or found.planned) * seeds * (study.base.run.export.keep + 1)
    seconds, disk = (todo * per_epoch + found.trials * EACH) / max(1, workers) + START, kept * size
    shown = {
        "points": f"{found.planned}"
        + (f", {found.duplicates} duplicates removed" if found.duplicates else ""),
        "trials": f"{found.trials}  ({found.planned} points × {study.replicates})",
        "epochs": f"{todo:g} to train" + (f", {done:g} done already" if done else ""),
        "structures": f"{len(found.structures)}, each built and tried on a few batches",
        "time": f"about {duration(seconds)} with {pluralize(workers, 'worker')}, if nothing is stopped early",
        "disk": f"about {format_size(disk)}",
    }
    if study.execute.fuse != "off":
        shown["fused"] = describe_fusing(study, found)
    if found.excluded:
        shown["excluded"] = f"{found.excluded} draws, by constraints"
    return {
        "points": found.planned, "trials": found.trials, "duplicates": found.duplicates,
        "structures": len(found.structures), "epochs": todo, "seconds": seconds, "bytes": disk,
        "workers": workers, "shown": shown,
    }  # fmt: skip


def _mean(values: list[float]) -> float:
    return math.fsum(values) / len(values) if values else 0.0
