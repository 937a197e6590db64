"""Which trials are assigned in one unit, to train in one pass: pure functions of the records.

Workers decide what can be fused, from what they have built; these trials probably can.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from manyfit.study.work.schedule import Ready
from manyfit.study.work.units import Trial

FREE: Final = (
    "train.optimizer", "train.scheduler", "train.momentum_scheduler", "train.clip_norm", "train.clip_value",
    "train.class_weights", "train.groups", "seed", "data.fold",
)  # fmt: skip
"""Keys whose numbers may differ between the trials of a group."""
FLOATS: Final = ("model", "train.loss")
"""Keys whose fractional numbers may differ, such as rates of dropout."""
MOST: Final = 64
"""The most trials in a group, unless the study says otherwise."""
ROUNDS: Final = 2
"""How many groups of a unit train on each stream, one after another, so that streams end together."""
MOST_OPEN: Final = 3 * MOST
"""The most trials in a unit: each of them is built, and has open files, before the first one trains."""


def group_of(item: Ready) -> Hashable:
    """Return what a trial has in common with those that it may train with."""
    structure = structure_of(item.point.values)
    return structure, item.until, item.trial.step, item.trial.split, bool(item.point.parent)


def structure_of(values: Mapping[str, Any]) -> Hashable:
    """Return the values of a point without the numbers that may differ within a group."""
    return tuple(sorted((key, repr(_without_numbers(key, value))) for key, value in values.items()))


def divide_trials(trials: Iterable[Trial], fuse: Literal["off", "auto"] | int) -> list[list[Trial]]:
    """Divide trials that wait for nothing into those that are trained in one unit."""
    alike: dict[Hashable, list[Trial]] = {}
    for number, trial in enumerate(trials):
        alike.setdefault(number if fuse == "off" else structure_of(trial.values), []).append(trial)
    most = fuse if isinstance(fuse, int) else MOST
    return [each[begin : begin + most] for each in alike.values() for begin in range(0, len(each), most)]


def join_groups(groups: Iterable[Sequence[Trial]], streams: int) -> list[list[Trial]]:
    """Return units that have several groups of different structures, which train side by side."""
    units, known = list[list[Trial]](), list[set[Hashable]]()
    for group in groups:
        key = structure_of(group[0].values)
        is_full = not units or len(known[-1]) == (1 if streams == 1 else streams * ROUNDS)
        if is_full or key in known[-1] or len(units[-1]) + len(group) > MOST_OPEN:
            units.append([])
            known.append(set())
        units[-1] += group
        known[-1].add(key)
    return units


def _without_numbers(key: str, value: Any) -> Any:
    """Return a value without the numbers that may differ."""
    if isinstance(value, Mapping):
        return {name: _without_numbers(f"{key}.{name}", item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_numbers(key, item) for item in value]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if is_number and is_free(key):
        return "a number"
    return "a number" if isinstance(value, float) and _lies(key, FLOATS) else value


def is_free(key: str) -> bool:
    """Return whether the numbers of a key may differ between the trials of a group."""
    return _lies(key, FREE)


def _lies(key: str, places: Sequence[str]) -> bool:
    return any(key == place or key.startswith(f"{place}.") for place in places)


def choose_mates(
    first: Ready, others: Iterable[Ready], fuse: Literal["auto"] | int, slots: int, waiting: int = 0
) -> list[Ready]:
    """Return those of the other trials that train with the first one.

    All workers get about as many: of those that can train with it, or of all that are `waiting`.
    """
    key = group_of(first)
    alike = [item for item in others if group_of(item) == key]
    most = MOST if fuse == "auto" else fuse
    share = -(-max(waiting, len(alike) + 1) // max(1, slots))
    return alike[: min(most, share) - 1]


def choose_neighbors(
    first: Ready,
    mates: Sequence[Ready],
    others: Iterable[Ready],
    fuse: Literal["auto"] | int,
    slots: int,
    streams: int,
) -> list[Ready]:
    """Return trials of other structures that train side by side with the first one and its mates.

    All workers get about as many groups; a unit has enough of them to keep its streams busy.
    """
    if streams == 1:
        return []
    key, groups = group_of(first), dict[Hashable, list[Ready]]()
    taken = {item.trial.id for item in mates}
    for item in others:
        if item.until == first.until and group_of(item) != key and item.trial.id not in taken:
            groups.setdefault(group_of(item), []).append(item)
    share = -(-(1 + len(groups)) // max(1, slots))
    found, most = list[Ready](), MOST if fuse == "auto" else fuse
    for group in list(groups.values())[: min(share, streams * ROUNDS) - 1]:
        if 1 + len(mates) + len(found) + len(group[:most]) <= MOST_OPEN:
            found += group[:most]
    return found
