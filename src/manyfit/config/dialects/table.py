"""All dialects, and the functions that other packages use: which dialect a config has, finding configs."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Final

from manyfit.config.dialects.dialect import Dialect, Translation
from manyfit.config.tree.nodes import Map
from manyfit.config.tree.project import project_root
from manyfit.core.dialect_table import ENTRIES


def _load(path: str) -> Dialect:
    module, _, name = path.rpartition(".")
    found: Dialect = getattr(importlib.import_module(module), name)
    return found


DIALECTS: Final = tuple(_load(entry.path) for entry in ENTRIES)
PLAIN: Final = Dialect("a run", lambda tree: True, lambda tree, project: Translation(tree))
"""The standard layout of a run."""
EPOCHS: Final = tuple(dict.fromkeys(".".join(map(str, each.epochs)) for each in (PLAIN, *DIALECTS)))
"""The keys of the number of epochs in all layouts."""
ADAPTERS: Final = frozenset(path for each in DIALECTS for path in each.adapters)
"""Class paths that represent a whole section in some layout."""


def dialect_of(tree: Map) -> Dialect:
    """Return the layout of a config."""
    return next((dialect for dialect in DIALECTS if dialect.is_written(tree)), PLAIN)


def find_config(name: str, folders: Sequence[FilePath] = (), here: FilePath | None = None) -> FilePath | None:
    """Return the file of a config that a dialect finds by its name."""
    found = (each.find(name, folders, here) for each in DIALECTS if each.find is not None)
    return next((file for file in found if file is not None), None)


def config_names(folders: Sequence[FilePath] = ()) -> list[str]:
    """Return the names of all configs that dialects find by name."""
    return [name for each in DIALECTS if each.names is not None for name in each.names(folders)]


def root_of(file: FilePath) -> FilePath:
    """Return the project that a config belongs to."""
    found = (each.root_of(file) for each in DIALECTS if each.root_of is not None)
    return next((root for root in found if root is not None), project_root(file))


def adopt(tree: Map, file: FilePath, root: FilePath) -> Map:
    """Adapt a config to a project if its file is shipped with manyfit."""
    for each in DIALECTS:
        if each.is_shipped is not None and each.is_shipped(file):
            tree = each.adopt(tree, root)
    return tree


def is_shipped(file: FilePath) -> bool:
    """Return whether a config is shipped with manyfit."""
    return any(each.is_shipped(file) for each in DIALECTS if each.is_shipped is not None)
