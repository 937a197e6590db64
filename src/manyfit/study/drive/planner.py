"""The choice of how a study is executed, if the config leaves it open: measured, explained, and recorded.

With `execute: {on: auto, fuse: auto}`, steps of runs alone and of growing groups are measured in this
process, on runs that are discarded; the way that is predicted to end first is chosen.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from manyfit.config import Config
from manyfit.config.study.study import StudyConfig
from manyfit.core.errors import Interrupted
from manyfit.core.quiet import PROGRESS
from manyfit.core.signals import Watch
from manyfit.study.executors.choose import choose_gpus, worker_places
from manyfit.study.ledger.ledger import Ledger
from manyfit.study.search.plan import StudyPlan
from manyfit.study.search.sampling import is_blind
from manyfit.study.work.failures import failure_of
from manyfit.study.work.groups import MOST, structure_of
from manyfit.study.work.points import Candidate, trial_config, trial_name
from manyfit.study.work.records import epochs_of

if TYPE_CHECKING:
    from manyfit.run.build.shared_data import SharedData
    from manyfit.run.session.measuring import Measured

log = logging.getLogger("manyfit")

AUTO: Final = "manyfit.executors.auto"
EXECUTION: Final = "execution"
"""Where the ledger keeps the choice."""
MEASURING: Final = "measuring"
"""What the ledger has while steps are measured."""
LEAST: Final = 2.0
SHARE: Final = 0.02
"""Seconds that measuring may take, or the share of the estimated time of the study if that is more."""
MOST_MEMORY: Final = 0.5
"""The share of the free memory that two groups side by side may take."""
LONG: Final = 10.0
"""Predicted seconds of a study from which on groups are measured side by side."""
START: Final = 2.5
"""Seconds until worker processes train, besides building data and models again."""
OPENING, OPENING_RUN = 0.2, 0.02
"""Seconds to open a group whose steps are launched, and for each of its runs: comparing and capturing."""
CROWDED: Final = 1.15
"""How much slower steps are while others are computed on the other cores."""
MOST_STRUCTURES: Final = 3
"""How many structures are measured: those with the most trials."""


@dataclass(frozen=True)
class Way:
    """A way to execute a study."""

    workers: int
    """1: in this process."""
    fuse: int
    """The most runs in one pass; 1: none."""
    seconds: float
    """Predicted, of the whole study."""
    streams: int = 1
    """How many groups train side by side on a GPU."""

    def describe(self) -> str:
        """Describe it in a few words."""
        where = "in this process" if self.workers == 1 else f"in {self.workers} processes"
        text = f"{where}, {'one run at a time' if self.fuse == 1 else f'up to {self.fuse} runs in one pass'}"
        return text if self.streams == 1 else f"{text}, {self.streams} groups side by side"


@dataclass(frozen=True)
class Execution:
    """The chosen way, and what it was chosen from."""

    workers: int
    fuse: Literal["off", "auto"] | int
    ways: Sequence[Way]
    """The fastest first."""
    measured: Sequence[str]
    """What was measured, line by line."""
    streams: int = 1

    def describe(self) -> list[str]:
        """Return a table of the ways, and what was measured."""
        lines = [f"{each.seconds:9.3g} s  {each.describe()}" for each in self.ways]
        return ["planned, by steps that were measured:", *lines, *self.measured]


def plan_execution(
    study: StudyConfig, found: StudyPlan, ledger: Ledger, shared: list[Any], watch: Watch
) -> Execution | None:
    """Return how a study is executed, if that is left open: measured now, or as it was begun.

    None if there is nothing to choose, or nothing can be measured; groups then decide for themselves. The
    data that was built is added to `shared`. A signal ends it.
    """
    if not is_open(study):
        return None
    places = len(worker_places(study))
    known = ledger.get(EXECUTION)
    content = [places, sorted(study.space.keys), found.trials, study.base.run.train.epochs]
    if known is not None and known["content"] == content:
        ways = [Way(**each) for each in known["ways"]]
        return Execution(known["workers"], known["fuse"], ways, known["measured"], known.get("streams", 1))
    if ledger.get(MEASURING):  # the process has ended meanwhile
        ledger.set(MEASURING, False)
        log.warning(
            "the process has ended before while steps were measured, so this time they are not: groups "
            "decide for themselves"
        )
        return None
    ledger.set(MEASURING, True)
    log.info("measuring steps, to choose how the study is executed", extra=PROGRESS)
    try:
        with watch.translate("ended by {name} before anything was trained; run the same command again"):
            chosen = _choose(study, found, ledger, places, shared, watch)
    finally:
        ledger.set(MEASURING, False)
    if chosen is not None:
        ledger.set(EXECUTION, {"content": content, **asdict(chosen)})
    return chosen


def is_open(study: StudyConfig) -> bool:
    """Return whether it is left open how a study is executed, and can be measured in this process."""
    execute = study.execute
    is_auto = execute.on is None or execute.on.path == AUTO
    if not is_auto or execute.fuse != "auto" or execute.hop or not is_blind(study):
        return False
    if study.search.folds is not None:  # each fold has other rows
        return False
    return len(set(choose_gpus(study))) <= 1


def apply_plan(study: StudyConfig, chosen: Execution | None) -> StudyConfig:
    """Return a study that is executed as planned."""
    if chosen is None:
        return study
    streams = chosen.streams if study.execute.streams == "auto" else study.execute.streams
    return replace(
        study, execute=replace(study.execute, workers=chosen.workers, fuse=chosen.fuse, streams=streams)
    )


def _choose(
    study: StudyConfig, found: StudyPlan, ledger: Ledger, places: int, shared: list[Any], watch: Watch
) -> Execution | None:
    from manyfit.run.build.shared_data import SharedData
    from manyfit.run.session.measuring import Measured, measure_steps

    shared.append(SharedData())
    alike = [(_count_left(study, ledger, points), points) for points in _divide_points(found.candidates)]
    alike = sorted((each for each in alike if each[0][0]), key=lambda each: -each[0][0])
    known = list[tuple[int, Measured]]()
    part = LEAST / max(1, min(len(alike), MOST_STRUCTURES))
    for (trials, left), points in alike[:MOST_STRUCTURES]:
        configs = _list_configs(study, found.configs, points)[:trials]

        def budget(seconds: float, trials: int = trials, left: float = left) -> float:
            return max(part, SHARE * seconds * left * trials / places)

        try:
            measured = measure_steps(configs, shared[0], budget, watch.check)
        except Interrupted:
            raise
        except (Exception, SystemExit) as error:  # the rehearsal reports it, or the trial
            log.warning("steps could not be measured: %s", failure_of(error).message)
            return None
        known.append((trials, replace(measured, steps=max(1, round(measured.steps * left)))))
    others = found.trials - len(found.candidates) * len(study.seeds)  # which are proposed later
    rest = others + sum(trials for (trials, _), _ in alike[MOST_STRUCTURES:])
    ways = compare_ways(known, rest, [places] if study.execute.workers else sorted({1, places}))
    if not ways:
        return None
    if len(alike) > 1 and _has_streams(study, known, ways[0]):
        groups = [
            _list_configs(study, found.configs, points)[: min(trials, ways[0].fuse)]
            for (trials, _), points in alike
        ]
        ways = _add_streams(ways, groups, shared[0], watch)
    best = ways[0]
    lines = [line for trials, each in known for line in describe_measured(trials, each)]
    fuse: Literal["off", "auto"] | int = best.fuse if best.fuse > 1 else "off"
    if rest or len({_limit_size(each, best.fuse) > 1 for _, each in known}) > 1:
        fuse = "auto"
        lines.append("there are several structures: each group compares itself with its runs alone")
    if best.streams > 1 and fuse == "off":  # what is launched alone has a stream, too
        fuse = "auto"
    return Execution(best.workers, fuse, ways, lines, best.streams)


def _has_streams(study: StudyConfig, known: Sequence[tuple[int, Measured]], best: Way) -> bool:
    """Return whether groups may train side by side, on one GPU on which their steps are launched."""
    is_launched = all(each.compiling is not None for _, each in known)
    is_open = study.execute.streams == "auto" and best.workers == 1
    fits = 2 * best.fuse * max((each.memory for _, each in known), default=0.0) <= MOST_MEMORY
    return is_open and is_launched and fits and bool(choose_gpus(study))


def _add_streams(
    ways: Sequence[Way], groups: Sequence[Sequence[Config]], shared: SharedData, watch: Watch
) -> list[Way]:
    """Return the ways, and the best one with groups of several structures side by side."""
    from manyfit.run.session.measuring_streams import STREAMS, measure_streams

    best = ways[0]
    if best.seconds < LONG:  # measuring takes longer than it may save; a second stream costs nothing
        return [replace(best, streams=min(STREAMS)), *ways]
    try:
        measured = measure_streams(groups[: max(STREAMS)], shared, watch.check)
    except Interrupted:
        raise
    except (Exception, SystemExit) as error:
        log.warning("groups side by side could not be measured: %s", failure_of(error).message)
        return list(ways)
    added = [replace(best, seconds=best.seconds * each.share, streams=each.streams) for each in measured]
    return sorted([*ways, *added], key=lambda each: (each.seconds, each.streams, each.workers, each.fuse))


def _count_left(study: StudyConfig, ledger: Ledger, points: Sequence[Candidate]) -> tuple[int, float]:
    """Return how many trials of some points are not complete, and what is left of each on average."""
    parts = []
    for point, seed in itertools.product(points, study.seeds):
        trial = ledger.trials.get(trial_name(point.id, seed))
        epochs = epochs_of(point.values, study.base.run.train.epochs)
        if trial is None:
            parts.append(1.0)
        elif trial.failure is None and not trial.reason and trial.epoch < epochs:  # it has not ended early
            parts.append(1 - trial.epoch / epochs)
    return len(parts), sum(parts) / max(1, len(parts))


def _divide_points(points: Sequence[Candidate]) -> list[list[Candidate]]:
    """Return the points of each structure."""
    key = structure_of
    ordered = sorted(points, key=lambda each: repr(key(each.values)))
    return [list(group) for _, group in itertools.groupby(ordered, key=lambda each: key(each.values))]


def _list_configs(
    study: StudyConfig, configs: Mapping[str, Config], points: Sequence[Candidate]
) -> list[Config]:
    """Return the configs of the first trials of some points."""
    pairs = itertools.product(study.seeds, points)
    found = []
    for seed, point in itertools.islice(pairs, MOST):
        config = configs.get(point.id) if seed == study.base.run.seed else None
        found.append(config or trial_config(study.base, point.values, seed, {}))
    return found


def compare_ways(known: Sequence[tuple[int, Measured]], rest: int, counts: Sequence[int]) -> list[Way]:
    """Return all ways that were measured, the fastest first; `known` has the trials of each structure.

    The `rest` of the trials are taken to be like those that were measured; `counts` are numbers of workers.
    """
    if not known or any(each.alone == float("inf") for _, each in known):
        return []
    sizes = sorted({1, *(step.runs for _, each in known for step in each.together)})
    scale = 1 + rest / sum(trials for trials, _ in known)
    ways, seen = list[Way](), set[tuple[int, ...]]()
    for workers in counts:
        share = max(-(-trials // workers) for trials, _ in known)
        for size in sorted({min(size, share) for size in sizes}):
            done = workers, *(_limit_size(each, min(size, -(-trials // workers))) for trials, each in known)
            if done in seen:  # no group would be larger
                continue
            seen.add(done)
            seconds = sum(_predict(trials, each, workers, size) for trials, each in known) * scale
            slower = CROWDED if workers > 1 else 1.0
            ways.append(Way(workers, size, seconds * slower + (START if workers > 1 else 0.0)))
    return sorted(ways, key=lambda each: (each.seconds, each.workers, each.fuse))


def _predict(trials: int, measured: Measured, workers: int, size: int) -> float:
    """Return the seconds of the trials of a structure in groups of at most some size."""
    share = -(-trials // workers)
    size = _limit_size(measured, min(size, share))
    groups, left = divmod(share, size)
    seconds = groups * _predict_steps(measured, size) + (_predict_steps(measured, left) if left else 0.0)
    if measured.compiling is not None:
        seconds += OPENING * (groups + bool(left)) + OPENING_RUN * share
    return measured.build * share + seconds


def _predict_steps(measured: Measured, runs: int) -> float:
    """Return the seconds of all steps of a group, with compiling if that is expected."""
    seconds = measured.steps * _interpolate(measured, runs)
    return seconds if measured.compiling is None else measured.compiling(seconds)


def _limit_size(measured: Measured, most: int) -> int:
    """Return the size of the groups in which runs train, of at most some size; 1 if that saves too little."""
    size = min(most, max((each.runs for each in measured.together), default=1))
    return size if measured.pays(size, _interpolate(measured, size)) else 1


def _interpolate(measured: Measured, runs: int) -> float:
    """Return the seconds of a step of some runs in one pass, between those that were measured.

    What runs seem to save beyond what they can is lost when others compute as well.
    """
    least = measured.alone - measured.saves
    together = [(each.runs, max(each.seconds, each.runs * least)) for each in measured.together]
    known = [(1, measured.alone), *together]
    sizes, seconds = zip(*known, strict=True)
    return float(np.interp(runs, sizes, seconds))


def describe_measured(trials: int, measured: Measured) -> list[str]:
    """Return what was measured, on one line."""
    parts = [f"alone {1e3 * measured.alone:.3g}"]
    parts += [f"{each.runs} in one pass {1e3 * each.per_run:.3g}" for each in measured.together]
    end = f"; {measured.end}" if measured.end else ""
    if measured.compiling is not None:
        end += "; not compiled, which predictions take into account"
    return [f"ms of a step and run ({trials} trials): {', '.join(parts)}{end}"]
