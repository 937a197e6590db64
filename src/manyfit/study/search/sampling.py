"""Sampling: grids are enumerated; all other points are proposed by an Optuna sampler."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from manyfit.config.study.space import Axis, Choice, Patch, to_patch
from manyfit.config.study.study import StudyConfig
from manyfit.config.tree.nodes import plain
from manyfit.config.typed.signatures import signature_of
from manyfit.core.errors import UsageError
from manyfit.core.lazy import import_optional
from manyfit.core.seeds import derive
from manyfit.data.randomness import own_randomness, seed_for

ATTEMPTS: Final = 40
"""How often a sampler that repeats itself is asked again, before points are drawn at random."""
EXHAUSTED: Final = ATTEMPTS + 200
"""How many proposals may be known or excluded in a row, before the space counts as exhausted."""


class Grid:
    """Grid search: every point of the search space."""


@dataclass(frozen=True)
class Observation:
    """What a sampler knows about a point: its values, its state, and the mean over its seeds."""

    values: Mapping[str, Any]
    state: Literal["running", "finished", "stopped", "failed"]
    value: float | None = None
    epoch: int = 0
    attrs: Mapping[str, Any] = field(default_factory=dict)


def is_blind(study: StudyConfig) -> bool:
    """Return whether points do not depend on results, so that all of them can be drawn at the start."""
    return study.is_grid or study.search.method.path == "optuna.samplers.RandomSampler"


def grid(study: StudyConfig) -> Iterator[Patch]:
    """Yield the points of a grid, at most `search.trials`."""
    points = study.space.grid(study.value)
    for number, patch in enumerate(points):
        if study.search.trials is not None and number >= study.search.trials:
            return
        yield patch


@dataclass(frozen=True)
class Proposal:
    """A proposed point, with the attributes that the sampler stores for it and for the whole search."""

    patch: Patch
    attrs: Mapping[str, Any]
    state: Mapping[str, Any]


class Sampler:
    """Asks an Optuna sampler for one point at a time; its state is rebuilt from the history each time."""

    def __init__(self, study: StudyConfig) -> None:
        self._optuna = import_optional("optuna", "search")
        self._optuna.logging.set_verbosity(self._optuna.logging.WARNING)
        self._study = study
        self._told: dict[str, Any] = {}
        self._direction = "minimize" if study.objective.mode == "min" else "maximize"

    def ask(
        self,
        history: Sequence[Observation],
        number: int,
        attempt: int,
        state: Mapping[str, Any] | None = None,
    ) -> Proposal:
        """Propose the point with a number: a pure function of the study's seed and of the arguments.

        `state` holds the attributes that the sampler stored for the whole search at its last proposal.
        """
        purpose = ("ask", number, attempt) if not self._is_sequence() else ("sequence",)
        seed = derive(self._study.search.seed, *purpose) & 0xFFFF_FFFF
        try:
            return self._ask(history, seed, attempt, state or {})
        except Exception as error:  # a sampler may raise anything for a space that it does not support
            method = self._study.search.method
            raise UsageError(
                f"{method.origin}: search.method: {method.path} cannot sample this search space: {error}"
            ) from error

    def _ask(
        self, history: Sequence[Observation], seed: int, attempt: int, state: Mapping[str, Any]
    ) -> Proposal:
        by_chance = attempt >= ATTEMPTS
        with warnings.catch_warnings(), self._seed_generators(seed):
            warnings.simplefilter("ignore")  # experimental features of Optuna
            sampler = self._optuna.samplers.RandomSampler(seed=seed) if by_chance else self._sampler(seed)
            study = self._optuna.create_study(sampler=sampler, direction=self._direction)
            if not is_blind(self._study) and not by_chance:
                study.add_trials([trial for seen in history if (trial := self._to_optuna(seen)) is not None])
            storage, id = study._storage, study._study_id
            for key, value in state.items():
                storage.set_study_system_attr(id, key, value)
            trial = study.ask()
            patch = self._suggest(trial)
            attrs = dict(study.get_trials(deepcopy=False)[-1].system_attrs)
            kept = {k: v for k, v in storage.get_study_system_attrs(id).items() if not k.startswith("study:")}
        return Proposal(patch, attrs, kept)

    @contextmanager
    def _seed_generators(self, seed: int) -> Iterator[None]:
        """Seed all generators for a custom sampler; Optuna's samplers have their own generators."""
        if self._study.search.method.path.startswith("optuna."):
            yield
            return
        with own_randomness():
            seed_for(seed)
            yield

    def _is_sequence(self) -> bool:
        """Return whether all points belong to one low-discrepancy sequence, which has one seed."""
        return bool(self._study.search.method.path == "optuna.samplers.QMCSampler")

    def _sampler(self, seed: int) -> Any:
        method = self._study.search.method
        known = signature_of(method.target).parameters
        extra = {"constant_liar": True} if "constant_liar" in known else {}
        supplied = {"seed": seed} if "seed" in known else {}
        return method.target(**{**extra, **supplied, **method.params})

    def _suggest(self, trial: Any) -> Patch:
        patch: Patch = {}
        space = self._study.space
        for axis in space.axes:
            if space.is_active(axis, patch, self._study.value):
                patch = {**patch, **axis.patch(suggest(trial, axis))}
        return patch

    def _to_optuna(self, seen: Observation) -> Any:
        """Return the cached result of `to_optuna_trial`."""
        key = json.dumps([dict(seen.values), seen.state, seen.value, seen.epoch], sort_keys=True, default=str)
        if key not in self._told:
            self._told[key] = to_optuna_trial(self._study, seen)
        return self._told[key]


def to_optuna_trial(study: StudyConfig, seen: Observation) -> Any:
    """Convert a point to an Optuna trial; return None if it is not a point of this search space."""
    optuna = import_optional("optuna", "search")
    choices = find_choices(study, seen.values)
    if choices is None:
        return None
    states = optuna.trial.TrialState
    params, distributions = {}, {}
    for axis in study.space.axes:
        if axis.name in choices:
            distributions[axis.name] = to_distribution(axis)
            params[axis.name] = _external(axis, choices[axis.name])
    given: dict[str, Any] = {
        "params": params,
        "distributions": distributions,
        "system_attrs": dict(seen.attrs),
    }
    if seen.state == "finished" and seen.value is not None:
        return optuna.trial.create_trial(state=states.COMPLETE, value=seen.value, **given)
    if seen.state == "stopped" and seen.value is not None:
        between = {max(seen.epoch, 1): seen.value}
        return optuna.trial.create_trial(
            state=states.PRUNED, value=seen.value, intermediate_values=between, **given
        )
    return optuna.trial.create_trial(
        state=states.RUNNING if seen.state == "running" else states.FAIL, **given
    )


def suggest(trial: Any, axis: Axis) -> Choice:
    """Ask an Optuna trial for the choice on an axis."""
    found = axis.range
    if found is None:
        words = _words(axis)
        return words.index(trial.suggest_categorical(axis.name, words))
    if found.kind == "int":
        step = int(found.step or 1)
        return int(trial.suggest_int(axis.name, int(found.low), int(found.high), step=step, log=found.log))
    return float(trial.suggest_float(axis.name, found.low, found.high, step=found.step, log=found.log))


def to_distribution(axis: Axis) -> Any:
    """Convert an axis to an Optuna distribution."""
    optuna = import_optional("optuna", "search")
    found = axis.range
    if found is None:
        return optuna.distributions.CategoricalDistribution(_words(axis))
    if found.kind == "int":
        return optuna.distributions.IntDistribution(
            int(found.low), int(found.high), log=found.log, step=int(found.step or 1)
        )
    return optuna.distributions.FloatDistribution(found.low, found.high, log=found.log, step=found.step)


def find_choices(study: StudyConfig, values: Mapping[str, Any]) -> dict[str, Choice] | None:
    """Return the choice on each axis that yields these values; None if they are not a point of the space."""
    choices: dict[str, Choice] = {}
    patch: Patch = {}
    for axis in study.space.axes:
        if not study.space.is_active(axis, patch, study.value):
            continue
        if axis.range is not None:
            value = values.get(axis.name)
            if not axis.range.holds(value):
                return None
            choices[axis.name] = value  # type: ignore[assignment]
        else:
            fits = [i for i, option in enumerate(axis.options) if _fits(option, values)]
            if not fits:
                return None
            choices[axis.name] = max(fits, key=lambda i: len(axis.options[i]))
        patch = {**patch, **axis.patch(choices[axis.name])}
    return choices


def is_point(study: StudyConfig, values: Mapping[str, Any]) -> bool:
    """Return whether values are a point of the search space that satisfies the constraints."""
    inside = find_choices(study, values) is not None
    return inside and study.space.allows(to_patch(values, study.space.origin), study.value)


def _fits(option: Patch, values: Mapping[str, Any]) -> bool:
    return all(key in values and values[key] == plain(node) for key, node in option.items())


def _words(axis: Axis) -> list[Any]:
    """Return the options of an axis for Optuna: their values if these are distinct scalars, else texts."""
    plains = [plain(option[axis.name]) if set(option) == {axis.name} else None for option in axis.options]
    scalars = all(set(option) == {axis.name} for option in axis.options) and all(
        isinstance(value, bool | int | float | str) or value is None for value in plains
    )
    if scalars and len({(type(value), value) for value in plains}) == len(plains) == len(set(plains)):
        return plains
    return [f"{i}: {_format_option(option)}" for i, option in enumerate(axis.options)]


def _format_option(option: Patch) -> str:
    text = ", ".join(f"{key}={json.dumps(plain(node), default=str)}" for key, node in option.items())
    return (text or "base")[:200]


def _external(axis: Axis, choice: Choice) -> Any:
    return _words(axis)[int(choice)] if axis.range is None else choice
