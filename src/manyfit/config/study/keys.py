"""The keys that a config may have, without importing the classes that it names: for completion."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from manyfit.config.load import config_file
from manyfit.config.schema.run import Run
from manyfit.config.study.sections import Described
from manyfit.config.tree.layers import Reader
from manyfit.config.tree.nodes import Map, Node, Seq, leaves
from manyfit.config.typed.component import Component
from manyfit.config.typed.kinds import Derived
from manyfit.config.typed.roles import is_record
from manyfit.config.typed.signatures import signature_of


def list_keys(record: Any = Run, at: str = "") -> list[str]:
    """Return the keys of a record of settings, with those of the records in it.

    >>> [key for key in list_keys() if key.startswith("train.every")]
    ['train.every.log', 'train.every.validate', 'train.every.checkpoint']
    """
    found = []
    for name, parameter in signature_of(record).parameters.items():
        annotation = getattr(parameter.annotation, "__origin__", parameter.annotation)
        if any(isinstance(each, Derived) for each in getattr(parameter.annotation, "__metadata__", ())):
            continue
        if is_record(annotation) and annotation is not Component:
            found += list_keys(annotation, f"{at}{name}.")
        else:
            found.append(f"{at}{name}")
    return found


def list_keys_of(place: Path) -> list[str]:
    """Return the keys of a run or study folder or file: those that it has, and those of its settings."""
    is_study = place.name == "study.yaml" or (place / "study.yaml").is_file()
    file = (place / "study.yaml" if place.is_dir() else place) if is_study else config_file(place)
    tree = Reader([]).read(file) if file.is_file() else None
    written = [] if tree is None else [".".join(map(str, path)) for path, _ in leaves(_cut_lists(tree))]
    if is_study:
        written += [f"set.{key}" for key in list_keys(Run)]
    return sorted({*written, *list_keys(Described if is_study else Run)})


def _cut_lists(tree: Map) -> Map:
    """Return a tree in which lists have no items: they are not addressed one by one."""
    found: dict[str, Node] = {}
    for key, node in tree.items.items():
        found[key] = _cut_lists(node) if isinstance(node, Map) else node
        if isinstance(node, Seq):
            found[key] = Seq((), node.origin)
    return Map(found, tree.origin, tree.keys)
