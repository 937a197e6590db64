"""Layouts of other systems. Each is a pure function from tree to tree; everything after it sees one schema.

What people see stays in the layout of their file: overrides, differences, identity, problems. So a
translation also says what a place in the layout of a run is called there.
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
    """What a config of another layout means, and how to speak of it in that layout."""

    tree: Map
    problems: list[Problem] = field(default_factory=list)
    places: dict[Path, Path] = field(default_factory=dict)
    """For each place in `tree` that stands elsewhere in the file: where."""
    kinds: dict[Path, Kind] = field(default_factory=dict)
    """What the keys of the file are to a run."""
    assumed: dict[Path, Any] = field(default_factory=dict)
    """Defaults that this layout has and that of a run has not."""
    foreign: Callable[[Path], bool] = lambda path: False
    """Whether a place in `tree` is of no interest to those who know the file."""
    folder: str | None = None
    """Where the run shall lie, if the file says so."""
    further: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Keys that this layout has in a mapping beside those of the run's."""

    def restore_path(self, path: str) -> str:
        """A path of `tree` as the file has it."""
        return ".".join(map(str, self.own(tuple(path.split(".")))))

    def own(self, path: Path) -> Path:
        """A place of `tree` in the file."""
        for length in range(len(path), 0, -1):
            if path[:length] in self.places:
                return (*self.places[path[:length]], *path[length:])
        return path

    def restore_problem(self, problem: Problem) -> Problem:
        """A problem in the words of the file."""
        owner, _, key = problem.path.rpartition(".")
        best = problem.suggestion or nearest(key, self.further.get(owner, ()))
        return replace(problem, path=self.restore_path(problem.path), suggestion=best)

    def facts(self, found: dict[Path, Any]) -> dict[Path, Any]:
        """What was learned of the places of `tree`, by those of the file."""
        return {self.own(path): fact for path, fact in found.items() if not self.foreign(path)}


@dataclass(frozen=True)
class Dialect:
    """A layout: how it is recognised, and what it means."""

    name: str
    is_written: Callable[[Map], bool]
    translate: Callable[[Map, FilePath], Translation]
    epochs: Path = ("train", "epochs")
    """Where this layout has the number of epochs."""
    alone: bool = False
    """Whether its file is the only one in the folder of a run."""
    reserved: frozenset[str] = frozenset()
    """Keys at the top that mean something here; all others are the user's own."""
    path_keys: tuple[str, ...] = ()
    """Keys that only say where the data lies, which may be said anew at each start."""
    optimizer_keys: tuple[str, ...] = ("train.optimizer", "train.groups")
    """Keys below which the options of optimisers stand."""
    folder_key: str = ""
    """The key that says where the run lies, if there is one."""
    adapters: frozenset[str] = frozenset()
    """Class paths that stand for a whole section of a run."""
    key_beside: Callable[[str], str] = lambda name: f"data.{name}"
    """Where a key that belongs to the data set stands in the file."""
    fed_by: Callable[[Component], str] = lambda data: f"data: {data.path}"
    """What feeds the model, in the words of the file."""
    schema: Callable[[Any], dict[str, Any]] | None = None
    """The JSON schema of a config, with the classes that it names."""
    find: Callable[[str, Sequence[FilePath], FilePath | None], FilePath | None] | None = None
    """Find the file of a config by its name: in some folders, or from a place on."""
    names: Callable[[Sequence[FilePath]], list[str]] | None = None
    """The names of all configs that can be found by name."""
    root_of: Callable[[FilePath], FilePath | None] | None = None
    """The project of a config that lies in another place than runs do."""
    is_shipped: Callable[[FilePath], bool] | None = None
    """Whether a config comes with manyfit."""
    adopt: Callable[[Map, FilePath], Map] = lambda tree, root: tree
    """What a config that comes with manyfit means in the project of whoever uses it."""


def choose_backend() -> None:
    """Let Keras run on torch where nobody says otherwise and TensorFlow is not installed."""
    if importlib.util.find_spec("tensorflow") is None:
        os.environ.setdefault("KERAS_BACKEND", "torch")
