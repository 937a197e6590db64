"""The definition of a dialect: a pure function from tree to tree, so that all later code sees one schema.

Overrides, differences, identity and problems stay in the layout of the user's file. A translation therefore
also maps paths in the layout of a run back to those of the file.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path as FilePath
from typing import Any

from manyfit.config.tree.nodes import Map, Path
from manyfit.config.typed.component import Component
from manyfit.config.typed.kinds import Kind
from manyfit.core.errors import Problem
from manyfit.core.names import nearest


@dataclass(frozen=True)
class Translation:
    """A config translated to the layout of a run, with the mapping back to its file."""

    tree: Map
    problems: list[Problem] = field(default_factory=list)
    places: dict[Path, Path] = field(default_factory=dict)
    """Paths in `tree` that differ from those in the file, with the latter."""
    kinds: dict[Path, Kind] = field(default_factory=dict)
    """The kinds of the keys of the file."""
    assumed: dict[Path, Any] = field(default_factory=dict)
    """Defaults that only this layout has."""
    foreign: Callable[[Path], bool] = lambda path: False
    """Whether a path in `tree` has no counterpart in the file."""
    folder: str | None = None
    """The run folder, if the file sets it."""
    further: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Keys of a mapping that only this layout has."""

    def restore_path(self, path: str) -> str:
        """Return the dotted path in the file for one in `tree`."""
        return ".".join(map(str, self.own(tuple(path.split(".")))))

    def own(self, path: Path) -> Path:
        """Return the path in the file for a path in `tree`."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.places:
                return (*self.places[path[:length]], *path[length:])
        return path

    def restore_problem(self, problem: Problem) -> Problem:
        """Return a problem with the path and the suggestion of the file."""
        owner, _, key = problem.path.rpartition(".")
        best = problem.suggestion or nearest(key, self.further.get(owner, ()))
        return replace(problem, path=self.restore_path(problem.path), suggestion=best)

    def facts(self, found: dict[Path, Any]) -> dict[Path, Any]:
        """Return facts by path in the file, without those that have no counterpart there."""
        return {self.own(path): fact for path, fact in found.items() if not self.foreign(path)}


@dataclass(frozen=True)
class Dialect:
    """A layout: how to recognize and translate it."""

    name: str
    is_written: Callable[[Map], bool]
    translate: Callable[[Map, FilePath], Translation]
    epochs: Path = ("train", "epochs")
    """The path of the number of epochs in this layout."""
    alone: bool = False
    """Whether its file must be the only config in the run folder."""
    reserved: frozenset[str] = frozenset()
    """Top-level keys with a meaning in this layout; all others are custom."""
    path_keys: tuple[str, ...] = ()
    """Keys that only locate the data, and may change at each start."""
    optimizer_keys: tuple[str, ...] = ("train.optimizer", "train.groups", "trainer")
    """Keys below which options of optimizers are set."""
    folder_key: str = ""
    """The key that sets the run folder, if there is one."""
    adapters: frozenset[str] = frozenset()
    """Class paths that represent a whole section of a run."""
    key_beside: Callable[[str], str] = lambda name: f"data.{name}"
    """Return the path in the file of a key of the data section."""
    fed_by: Callable[[Component], str] = lambda data: f"data: {data.path}"
    """Return a description of what feeds the model, in terms of the file."""
    schema: Callable[[Any], dict[str, Any]] | None = None
    """Return the JSON Schema of a config, with the classes that it names."""
    find: Callable[[str, Sequence[FilePath], FilePath | None], FilePath | None] | None = None
    """Find the file of a config by name, in given folders or from a given place."""
    names: Callable[[Sequence[FilePath]], list[str]] | None = None
    """The names of all configs that can be found by name."""
    root_of: Callable[[FilePath], FilePath | None] | None = None
    """Return the project of a config that is not in a run folder."""
    is_shipped: Callable[[FilePath], bool] | None = None
    """Return whether a config is shipped with manyfit."""
    adopt: Callable[[Map, FilePath], Map] = lambda tree, root: tree
    """Adapt a config shipped with manyfit to the project that uses it."""


def choose_backend() -> None:
    """Select torch as the backend of Keras, unless one is set or TensorFlow is installed."""
    if importlib.util.find_spec("tensorflow") is None:
        os.environ.setdefault("KERAS_BACKEND", "torch")
