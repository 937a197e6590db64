"""The plan of a study: every point that is known before training, checked."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from manyfit.config import Config
from manyfit.config.identity import hash_data
from manyfit.config.schema.consistency import find_overridden_rates
from manyfit.config.study.space import MOST_POINTS, Axis, Patch, to_patch
from manyfit.config.study.study import StudyConfig
from manyfit.config.tree.nodes import plain
from manyfit.core.errors import ConfigError, Problem, UsageError
from manyfit.study.search.sampling import EXHAUSTED, Sampler, grid, is_blind, is_point
from manyfit.study.work.groups import is_free
from manyfit.study.work.points import Candidate, configure_point, name
from manyfit.study.work.records import PointRecord

log = logging.getLogger("manyfit")

MOST_PROBLEMS: Final = 50
MOST_COMPARED: Final = 1000
"""Up to this many points, `covering` compares all of them; beyond, it takes the next one."""
MOST_KEPT: Final = 2048
"""Number of configs kept in memory, of about 10 kB each."""


@dataclass
class StudyPlan:
    """The points of a study, and what was found while they were checked."""

    candidates: list[Candidate] = field(default_factory=list)
    """The points that are known before the first one is trained."""
    planned: int = 0
    """Number of points, including those that are proposed later."""
    duplicates: int = 0
    excluded: int | None = None
    seeds: int = 1
    structures: dict[str, Candidate] = field(default_factory=dict)
    """One point for each structure that has to be built; see `structure`."""
    configs: dict[str, Config] = field(default_factory=dict)
    """Configs of points with the seed of the base, so that trials in this process are not checked twice."""
    facts: list[dict[str, Any]] = field(default_factory=list)
    """Measurements of the rehearsals."""

    @property
    def trials(self) -> int:
        """Number of trials: points times seeds."""
        return self.planned * self.seeds


def plan_study(study: StudyConfig, known: Sequence[PointRecord] = ()) -> StudyPlan:
    """Draw and check every point that can be known before training; raise all errors together.

    `known` are the points that were proposed earlier: only the missing ones are drawn.
    """
    found = StudyPlan(seeds=len(study.seeds))
    if not any(key.startswith("train.scheduler") for key in study.space.keys):
        for text in find_overridden_rates(study.base.run.train, study.space.keys):
            log.warning("%s", text)
    base = configure_point(study.base, {}, study.base.run.seed)  # so that its variants are configs of trials
    problems: dict[Problem, None] = {}
    seen: dict[str, Candidate] = {}
    for number, (patch, attrs) in enumerate(_patches(study, found, known)):
        if number >= MOST_POINTS:
            raise UsageError(f"{study.space.origin}: space: more than {MOST_POINTS:,} points")
        try:
            config = configure_point(base, patch)
        except ConfigError as error:
            problems |= dict.fromkeys(_add_hint(problem, patch) for problem in error.problems)
            if len(problems) >= MOST_PROBLEMS:
                break
            continue
        id = name(config, study.space.keys)
        if id in seen:
            found.duplicates += is_blind(study)
            continue
        values = {key: plain(node) for key, node in patch.items()}
        kept = Candidate(id, values, "grid" if study.is_grid else "asked", attrs=attrs)
        seen[id] = kept
        found.structures.setdefault(structure(config), kept)
        if is_blind(study):
            found.candidates.append(kept)
            if len(found.configs) < MOST_KEPT:
                found.configs[id] = config
    if problems:
        raise ConfigError(list(problems)[:MOST_PROBLEMS])
    for kept in covering(study.space.axes, list(seen.values()), list(found.structures.values())):
        found.structures[f"values of {kept.id}"] = kept
    found.planned = len(found.candidates) if is_blind(study) else study.search.trials or 0
    if not found.planned:
        raise UsageError(f"{study.space.origin}: space: no point satisfies the constraints")
    return found


def _patches(
    study: StudyConfig, found: StudyPlan, known: Sequence[PointRecord]
) -> Iterator[tuple[Patch, dict[str, Any]]]:
    """Yield every known point; for an adaptive search, every option and both ends of every range."""
    if study.is_grid:
        total = 1
        for axis in study.space.axes:
            count = axis.range.count() if axis.range is not None else len(axis.options)
            if not count:
                text = "a grid over a range requires the number of points"
                raise ConfigError([Problem(f"space.{axis.name}", axis.origin, text, "points: 5, or step")])
            total *= count
            if total > MOST_POINTS and not study.space.has_conditions:
                text = f"the grid has {total:,} points or more"
                raise ConfigError(
                    [Problem(f"space.{axis.name}", axis.origin, text, f"at most {MOST_POINTS:,}")]
                )
        for patch in grid(study):
            yield patch, {}
    elif is_blind(study):
        yield from _draw(study, found, known)
    else:
        for patch in study.space.probes(study.value):
            yield patch, {}


def _draw(
    study: StudyConfig, found: StudyPlan, known: Sequence[PointRecord]
) -> Iterator[tuple[Patch, dict[str, Any]]]:
    """Yield random points, each seeded by its number; excluded and repeated ones are drawn again."""
    sampler = Sampler(study)
    seen: set[str] = set()
    found.excluded = 0
    kept = [point for point in known if is_point(study, point.values)]
    for point in kept[: study.search.trials]:
        seen.add(hash_data(dict(point.values)))
        yield to_patch(point.values, study.space.origin), dict(point.attrs)
    for number in range(len(kept), study.search.trials or 0):
        for attempt in range(EXHAUSTED):
            asked = sampler.ask([], number, attempt)
            patch, attrs = asked.patch, dict(asked.attrs)
            key = hash_data({k: plain(node) for k, node in patch.items()})
            if not study.space.allows(patch, study.value):
                found.excluded += 1
            elif key in seen:
                found.duplicates += 1
            else:
                seen.add(key)
                yield patch, attrs
                break
        else:
            return


def _add_hint(problem: Problem, patch: Patch) -> Problem:
    """Add a hint to an error that arises because the space varies a class without its parameters."""
    owner, _, key = problem.path.rpartition(".")
    if f"{owner}.class" not in patch or not re.match("unknown key|.* needs the parameter", problem.message):
        return problem
    way = f"choose classes with their parameters: {owner}: [{{class: …, {key}: …}}, {{class: …}}]"
    return replace(problem, expected=f"{problem.expected}; or {way}")


def covering(
    axes: Sequence[Axis], candidates: Sequence[Candidate], built: Sequence[Candidate]
) -> list[Candidate]:
    """Return a few points that, with those `built`, cover every option and both ends of every range.

    Floats of the optimizer and its schedules are like a range: their smallest and largest option is covered.
    """
    ranges = {key for axis in axes if axis.range is not None for key in axis.keys}

    def is_in_range(key: str, value: Any) -> bool:
        return key in ranges or (isinstance(value, float) and is_free(key))

    numbers: dict[str, list[Any]] = {}
    for candidate in candidates:
        for key, value in candidate.values.items():
            if is_in_range(key, value):
                numbers.setdefault(key, []).append(value)
    ends = {key: {min(found), max(found)} for key, found in numbers.items()}

    def held(candidate: Candidate) -> set[tuple[str, str]]:
        return {
            (key, repr(value))
            for key, value in candidate.values.items()
            if not is_in_range(key, value) or value in ends[key]
        }

    left = {each.id: held(each) for each in candidates}
    done = set().union(*(held(each) for each in built))
    by_id, chosen = {each.id: each for each in candidates}, list[Candidate]()
    while True:
        left = {id: rest for id, held_ in left.items() if (rest := held_ - done)}
        if not left:
            return chosen
        best = max(left, key=lambda id: len(left[id])) if len(left) <= MOST_COMPARED else next(iter(left))
        chosen.append(by_id[best])
        done |= left[best]


def structure(config: Config) -> str:
    """Return a hash of what determines how a config is built: classes, sizes and data, but no floats."""
    given = config.explicit
    parts = {part: _without_floats(given.get(part)) for part in ("model", "data")}
    classes = {".".join(map(str, path)): name for path, name in config.classes.items()}
    return hash_data({**parts, "classes": classes, "limit": given.get("train", {}).get("limit")})


def _without_floats(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_floats(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_without_floats(item) for item in value]
    return "a number" if isinstance(value, float) else value
