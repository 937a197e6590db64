"""Data that the runs of one process share: built and fingerprinted once, not once for each run.

Only a study does this, where nothing changes between its trials. Whoever calls `train` twice from Python may
have changed a file in between, and gets it read again.
"""

from __future__ import annotations

import random
import sys
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from manyfit.config import Config
from manyfit.config.identity import digest, normal
from manyfit.core.secrets import has_secrets
from manyfit.data import Source

MOST: Final = 2
"""Data sets that are kept. A search over their parameters makes more of them, which may be large."""


@dataclass(frozen=True)
class Splits:
    """A data set as it was built: its batch size, and a source for each split."""

    batch_size: int
    sources: Mapping[str, Source | None]
    prints: dict[str, str] = field(default_factory=dict)
    """Fingerprints that were taken already."""

    @property
    def is_constant(self) -> bool:
        """Whether reading it changes nothing: then it does not matter who else reads it."""
        found = [source for source in self.sources.values() if source is not None]
        return all(getattr(source, "is_constant", False) for source in found)

    def fingerprint(self, split: str, source: Source) -> str:
        """Return the fingerprint of a split; `source` is the whole of it, or a part."""
        if source is not self.sources.get(split):
            return source.fingerprint()
        if split not in self.prints:
            self.prints[split] = source.fingerprint()
        return self.prints[split]


class SharedData:
    """The data sets that were built in this process, by what their configs say."""

    def __init__(self) -> None:
        self._found: OrderedDict[str, Splits] = OrderedDict()

    def get(self, config: Config) -> Splits | None:
        """Return what was built for a config that describes the same data, if it was."""
        for key in (data_key(config), data_key(config, config.run.seed)):
            if key in self._found:
                self._found.move_to_end(key)
                return self._found[key]
        return None

    def put(self, config: Config, found: Splits, drew: bool) -> None:
        """Keep a data set, if others may read it. One that drew random numbers is that of its seed alone."""
        if not found.is_constant or has_secrets():
            return
        self._found[data_key(config, config.run.seed if drew else None)] = found
        while len(self._found) > MOST:
            self._found.popitem(last=False)


def data_key(config: Config, seed: int | None = None) -> str:
    """Return what a data set follows from: its class and arguments, the code, and perhaps the seed."""
    given = normal(config.meaning.items["data"], config.classes, ("data",))
    return digest([given, str(config.project), [str(source) for source in config.sources], seed])


def random_position() -> Any:
    """Return where the global random generators stand; TensorFlow's cannot be asked."""
    import torch

    if "tensorflow" in sys.modules:
        return object()
    _, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    state = np.asarray(keys).tobytes(), position, has_gauss, cached
    return random.getstate(), state, torch.get_rng_state().numpy().tobytes()
