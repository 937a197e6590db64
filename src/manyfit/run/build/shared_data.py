"""Data that the runs of one process share: built and fingerprinted once, not once per run.

Only studies share data, since nothing changes between their trials. Between two calls of `train` from Python
a file may have changed, so the data is read again.

A data set is built by user code, which may have side effects. It is shared only if its rows are plain arrays
and building it has changed neither the process nor its module and class. A data set may depend on the
seed in hidden ways, so it is built again for each seed, until three seeds have given the same rows.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from manyfit.config import Component, Config
from manyfit.config.identity import hash_data, normal
from manyfit.core.redaction import has_secrets
from manyfit.data import Source
from manyfit.data.overlap import Compared, Overlap
from manyfit.run.loop.process_state import ProcessState

MOST: Final = 2
"""The number of data sets kept: a search over their parameters creates many, which may be large."""
SEEDS: Final = 3
"""With how many seeds a data set must have had the same rows to be shared with other seeds."""


@dataclass(frozen=True)
class BuiltData:
    """A data set after building: its batch size, and a source for each split."""

    batch_size: int
    sources: Mapping[str, Source | None]
    data: Any = None
    """The object of the config, which may read new rows itself."""
    prints: dict[str, str] = field(default_factory=dict)
    """Fingerprints computed so far, by split."""
    overlaps: dict[str, Overlap | None] = field(default_factory=dict)
    """The rows of a whole split that are also in the whole training split, by split."""

    @property
    def is_constant(self) -> bool:
        """Whether reading has no side effects, so that several runs can read it.

        A source must declare this in its own class, since a subclass may override the methods of its base.
        """
        found = [type(source) for source in self.sources.values() if source is not None]
        return all(vars(cls).get("is_constant", False) for cls in found)

    def fingerprint(self, split: str, source: Source) -> str:
        """Return the fingerprint of a split; `source` is the whole split or a part of it."""
        derive = getattr(source, "derive_fingerprint", None)  # of a part, from the fingerprint of the whole
        if derive is not None:
            return str(derive(self.fingerprint(split, source.source)))  # type: ignore[attr-defined]
        if source is not self.sources.get(split):
            return source.fingerprint()
        if split not in self.prints:
            self.prints[split] = source.fingerprint()
        return self.prints[split]

    def overlap(self, split: str, source: Source, train: Compared) -> Overlap | None:
        """Return the rows of a split, or of a part of it, that are also among the training rows."""
        if train.source is not self.sources.get("train") or source is not self.sources.get(split):
            return train.overlap(source)
        if split not in self.overlaps:
            self.overlaps[split] = train.overlap(source)
        return self.overlaps[split]

    def is_same(self, other: BuiltData) -> bool:
        """Return whether another data set has the same rows."""
        return self.batch_size == other.batch_size and self._every_print() == other._every_print()

    def _every_print(self) -> dict[str, str]:
        found = self.sources.items()
        return {split: self.fingerprint(split, source) for split, source in found if source is not None}


class SharedData:
    """The data sets built in this process, by the data section of their configs."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, int], BuiltData] = {}
        """By what describes the data, and the seed."""
        self._refused: set[str] = set()
        """Classes whose construction had side effects."""

    def get(self, config: Config) -> BuiltData | None:
        """Return the data set of an earlier config that describes the same data, if there is one."""
        described, seed = identify_data(config), config.run.seed
        found = self._found.pop((described, seed), None)
        if found is None:
            others = [each for (text, _), each in self._found.items() if text == described]
            if len(others) < SEEDS or any(each is not others[0] for each in others):
                return None
            return others[0]
        self._found[described, seed] = found  # most recently used last
        return found

    def put(self, config: Config, found: BuiltData, was_left_alone: bool) -> BuiltData:
        """Store a data set if it can be shared; return it, or a stored one with the same rows."""
        path = config.run.data.path
        if not was_left_alone:
            self._refused.add(path)
            self._found = {
                key: each for key, each in self._found.items() if not key[0].startswith(f"{path} ")
            }
        if path in self._refused or not found.is_constant or has_secrets():
            return found
        known = {id(each): each for each in self._found.values()}
        found = next((each for each in known.values() if each.is_same(found)), found)
        self._found[identify_data(config), config.run.seed] = found
        while len({id(each) for each in self._found.values()}) > MOST:
            del self._found[next(iter(self._found))]
        return found


def identify_data(config: Config) -> str:
    """Return what determines a data set, except for the seed: its class and arguments, and the code."""
    given = normal(config.meaning.items["data"], config.classes, ("data",))
    places = [str(config.project), *(str(source) for source in config.sources)]
    return f"{config.run.data.path} {hash_data([given, places])}"


def read_surroundings(component: Component) -> Any:
    """Return the state that building a component might change: process, module and class."""
    target = component.target
    module = sys.modules.get(getattr(target, "__module__", ""))
    classes = target.__mro__[:-1] if isinstance(target, type) else ()
    names = [  # Python adds some lazily, such as __annotations__
        {name: id(value) for name, value in vars(each).items() if not name.startswith("__")}
        for each in (module, *classes)
        if each is not None
    ]
    return ProcessState.read(), names
