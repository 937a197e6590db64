"""A study as an array of independent jobs: each trains some of the trials, in their run folders.

The jobs do not communicate, and none writes the ledger. `manyfit sweep` then reads the results from the run
folders.
"""

from __future__ import annotations

from pathlib import Path

from manyfit.config.study.study import StudyConfig, load_study
from manyfit.core.errors import UsageError
from manyfit.core.signals import watch_signals
from manyfit.data.randomness import own_randomness
from manyfit.study.search.plan import plan_study
from manyfit.study.search.sampling import is_blind
from manyfit.study.sweep import count_streams, write_base
from manyfit.study.work.folder import StudyFolder
from manyfit.study.work.groups import divide_trials, join_groups
from manyfit.study.work.points import trial_name
from manyfit.study.work.training import Training
from manyfit.study.work.unit_watch import UnitWatch
from manyfit.study.work.units import Outcome, Trial, Unit


def find_obstacle(study: StudyConfig) -> str:
    """Return why a study cannot be split into independent jobs; empty if it can."""
    if not is_blind(study):
        return "its points depend on results"
    return "its stopper compares trials" if study.search.stop is not None else ""


def trials_of(study: StudyConfig) -> list[Trial]:
    """Return every trial of a study whose points are all known in advance."""
    folder = StudyFolder(study.folder)
    return [
        Trial(id_, str(folder.trial(id_).path), item.values, seed)
        for item in plan_study(study, []).candidates
        for seed in study.seeds
        for id_ in [trial_name(item.id, seed)]
    ]


def train_share(place: Path, task: int, of: int) -> list[Outcome]:
    """Train every `of`-th trial of a study, starting at `task`; finished trials are not trained again."""
    study = load_study(place)
    if reason := find_obstacle(study):
        raise UsageError(f"{place} cannot be split into shares: {reason}")
    if not 0 <= task < of:
        raise UsageError(f"the share must be between 0 and {of - 1}, not {task}")
    folder = StudyFolder(study.folder)
    folder.trials.mkdir(exist_ok=True)
    with watch_signals() as watch, own_randomness():
        base = str(write_base(study, folder))
        fuse, streams, found = study.execute.fuse, count_streams(study), list[Outcome]()
        work = Training(base, study.objective.metric, fuse=fuse, streams=streams)
        for trials in join_groups(divide_trials(trials_of(study)[task::of], fuse), streams):
            watch.check()
            found += work(Unit(tuple(trials)), UnitWatch(watch), lambda progress: None)
        return found
