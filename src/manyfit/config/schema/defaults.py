"""Defaults of omitted values, so that references can refer to them."""

from __future__ import annotations

import dataclasses
import importlib
import typing
from collections.abc import Callable, Mapping
from pathlib import Path as FilePath
from typing import Any, Final

from manyfit.config.schema.run import Run
from manyfit.config.tree.nodes import Leaf, Map, Node, Path, class_word, find, from_plain
from manyfit.config.tree.project import is_folder
from manyfit.config.typed.artifacts import Artifact
from manyfit.config.typed.checker import Checker, find_derived_mark
from manyfit.config.typed.class_paths import ResolveError, canonical, resolve
from manyfit.config.typed.component import Component
from manyfit.config.typed.roles import ANY, Role, is_record
from manyfit.config.typed.signatures import INHERITED, REQUIRED, signature_of
from manyfit.core.errors import ConfigError, ManyfitError
from manyfit.core.names import listing, nearest

PROVIDER: Final = "manyfit.data.facts"


@dataclasses.dataclass(frozen=True)
class Defaults:
    """Defaults from signatures. `resolved` returns the node at a path, with references resolved."""

    root: Map
    project: FilePath
    frozen: Mapping[str, Any]
    artifact: Artifact | None
    resolved: Callable[[Path], Node | None]
    memo: dict[Any, Any] = dataclasses.field(default_factory=dict)
    """Facts of the data that were read for this config or one that it is a patch of."""

    def at(self, path: Path) -> Node | None:
        """Return the default of the field or parameter at `path`, or its derived value; None without one."""
        owner, role = self.owner(path[:-1])
        parameter = signature_of(owner).parameters.get(str(path[-1])) if callable(owner) and path else None
        if parameter is None:
            return self.fact(path) if len(path) == 2 and path[0] == "data" else None
        value = parameter.default
        if find_derived_mark(parameter) is not None:
            value = self.derive(path) if is_record(owner) and role is ANY else REQUIRED
        if value is REQUIRED or value is INHERITED:
            return None
        try:
            return from_plain(value)
        except ConfigError:
            return None

    def owner(self, path: Path) -> tuple[Any, Role]:
        """Return the class whose parameters are at `path`, and its role."""
        record = record_at(path)
        if record is not None:
            return record, Role("section of a run")
        node = find(self.root, path)
        if isinstance(node, Map) and (word := class_word(node)):
            node = node.items[word]
        name = node.value if isinstance(node, Leaf) else None
        if not isinstance(name, str) or "${" in name:
            return None, ANY
        role = role_at(path)
        source = source_folder(self.root, self.project)
        if self.artifact is not None:
            full = canonical(name, role)
            if self.artifact.refuses(full):
                return None, ANY
            source = self.artifact.source_of(full)
        try:
            return resolve(name, role, source), role
        except ResolveError:
            return None, ANY

    def fact(self, path: Path) -> Node | None:
        """Return a fact that the built data states about itself, such as its number of classes."""
        section, name = self.resolved(path[:1]), str(path[1])
        if not isinstance(section, Map) or self.artifact is not None:
            return None
        source = source_folder(self.root, self.project)
        checker = Checker(section, self.project, source, self.frozen)
        component = checker.component(section, role_at(path[:1]), path[:1], keep=True)
        if checker.problems or not isinstance(component, Component):
            return None  # the check of the data reports them
        provider, given = importlib.import_module(PROVIDER), list(section.items)
        if name not in provider.DERIVED and not hasattr(component.target, "facts"):
            if nearest(name, [*given, *provider.DERIVED]) not in provider.DERIVED:
                return None
            raise ValueError(f"data has no {name!r}; did you mean data.{nearest(name, provider.DERIVED)}?")
        try:
            found = self.read_facts(component, name)
        except ManyfitError as error:
            raise ValueError(f"data.{name} could not be read from the data: {error}") from error
        if name not in found:
            known = [*found, *provider.DERIVED, *given]
            best = nearest(name, known)
            hint = f"did you mean data.{best}?" if best else f"its facts are {listing(known)}"
            raise ValueError(f"{component.path} has neither a parameter nor a fact {name!r}; {hint}")
        return from_plain(found[name])

    def read_facts(self, data: Component, name: str) -> Mapping[str, Any]:
        """Return the facts of a data set; the trials of a study read those of the same data once.

        The layer of the data is not imported before a config refers to a fact.
        """
        known: dict[str, Mapping[str, Any]] = self.memo.setdefault("facts", {})
        key = f"{data.path} {data.params!r}"
        if name not in known.get(key, ()):
            found: Mapping[str, Any] = importlib.import_module(PROVIDER).facts_of(data.build(), name)
            known[key] = {**known.get(key, {}), **found}
        return known[key]

    def derive(self, path: Path) -> Any:
        """Return a derived field of a section, by building the section."""
        section = self.resolved(path[:-1])
        if not isinstance(section, Map):
            return REQUIRED
        source = source_folder(self.root, self.project)
        checker = Checker(section, self.project, source, self.frozen, artifact=self.artifact)
        checker.component(section, ANY, path[:-1])
        return checker.derived.get(path, REQUIRED)


def source_folder(root: Map, project: FilePath) -> FilePath | None:
    """Return the folder of the user's code: `src_code_path`, else `src`; None if it does not exist."""
    node = root.items.get("src_code_path")
    text = node.value if isinstance(node, Leaf) and isinstance(node.value, str) else "src"
    return project / text if is_folder(project / text) else None


def record_at(path: Path) -> Any:
    """Return the class of the section at `path`; None if it is not a section of a run."""
    record: Any = Run
    for key in path:
        record = typing.get_type_hints(record).get(str(key))
        if not dataclasses.is_dataclass(record) or record is Component:
            return None
    return record


def role_at(path: Path) -> Role:
    """Return the role of the component at `path`."""
    record = record_at(path[:-1])
    hint = typing.get_type_hints(record, include_extras=True).get(str(path[-1])) if record and path else None
    return next((mark for mark in getattr(hint, "__metadata__", ()) if isinstance(mark, Role)), ANY)
