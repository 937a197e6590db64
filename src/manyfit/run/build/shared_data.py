"""Data that the runs of one process share: built and fingerprinted once, not once for each run.

Only a study does this, where nothing changes between its trials. Whoever calls `train` twice from Python may
have changed a file in between, and gets it read again.

Building a data set is the user's code, and may do more than return rows. It is shared only if its rows are
plain arrays, and if building it has left the process, its module and its class as they were. A data set is
that of its seed: it may follow from it in ways that nobody sees.
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
from manyfit.run.loop.process_state import ProcessState

MOST: Final = 2
"""Data sets that are kept. A search over their parameters makes more of them, which may be large."""


@dataclass(frozen=True)
class BuiltData:
    """A data set as it was built: its batch size, and a source for each split."""

    batch_size: int
    sources: Mapping[str, Source | None]
    prints: dict[str, str] = field(default_factory=dict)
    """Fingerprints that were taken already."""

    @property
    def is_constant(self) -> bool:
        """Whether reading it changes nothing: then it does not matter who else reads it.

        A source says so by its own class; a subclass may override what its base does.
        """
        found = [type(source) for source in self.sources.values() if source is not None]
        return all(vars(cls).get("is_constant", False) for cls in found)

    def fingerprint(self, split: str, source: Source) -> str:
        """Return the fingerprint of a split; `source` is the whole of it, or a part."""
        derive = getattr(source, "derive_fingerprint", None)  # of a part, from that of the whole
        if derive is not None:
            return str(derive(self.fingerprint(split, source.source)))  # type: ignore[attr-defined]
        if source is not self.sources.get(split):
            return source.fingerprint()
        if split not in self.prints:
            self.prints[split] = source.fingerprint()
        return self.prints[split]

    def is_same(self, other: BuiltData) -> bool:
        """Whether another data set has the same rows."""
        return self.batch_size == other.batch_size and self._every_print() == other._every_print()

    def _every_print(self) -> dict[str, str]:
        found = self.sources.items()
        return {split: self.fingerprint(split, source) for split, source in found if source is not None}


class SharedData:
    """The data sets that were built in this process, by what their configs say."""

    def __init__(self) -> None:
        self._found: dict[str, BuiltData] = {}
        self._refused: set[str] = set()
        """Classes that were seen to change something while they were made."""

    def get(self, config: Config) -> BuiltData | None:
        """Return what was built for a config that describes the same data, if it was."""
        key = data_key(config)
        found = self._found.pop(key, None)
        if found is not None:
            self._found[key] = found  # the last one that was asked for
        return found

    def put(self, config: Config, found: BuiltData, was_left_alone: bool) -> BuiltData:
        """Keep a data set, if others may read it; return it, or one with the same rows that is kept."""
        path = config.run.data.path
        if not was_left_alone:
            self._refused.add(path)
            self._found = {key: each for key, each in self._found.items() if not key.startswith(f"{path} ")}
        if path in self._refused or not found.is_constant or has_secrets():
            return found
        known = {id(each): each for each in self._found.values()}
        found = next((each for each in known.values() if each.is_same(found)), found)
        self._found[data_key(config)] = found
        while len({id(each) for each in self._found.values()}) > MOST:
            del self._found[next(iter(self._found))]
        return found


def data_key(config: Config) -> str:
    """Return what a data set follows from: its class and arguments, the code, and the seed."""
    given = normal(config.meaning.items["data"], config.classes, ("data",))
    places = [str(config.project), *(str(source) for source in config.sources)]
    return f"{config.run.data.path} {hash_data([given, places, config.run.seed])}"


def read_surroundings(component: Component) -> Any:
    """Return what building a component might change, beside the component: process, module and class."""
    target = component.target
    module = sys.modules.get(getattr(target, "__module__", ""))
    classes = target.__mro__[:-1] if isinstance(target, type) else ()
    names = [  # Python adds some of its own, such as __annotations__, when they are first asked for
        {name: id(value) for name, value in vars(each).items() if not name.startswith("__")}
        for each in (module, *classes)
        if each is not None
    ]
    return ProcessState.read(), names
