"""The checked config: reading, comparing and writing it."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any

from manyfit.config.identity import Difference, Snapshot, diff_snapshots, flat, hash_data, identity, normal
from manyfit.config.schema.run import Run
from manyfit.config.tree.nodes import Map, Node, Path, Seq, find, from_plain, join_path, leaves, plain
from manyfit.config.tree.reader import dump_parts
from manyfit.config.tree.references import escape, unescape_references
from manyfit.config.typed.artifacts import Artifact
from manyfit.config.typed.component import Component
from manyfit.config.typed.kinds import Kind
from manyfit.config.typed.section import Section
from manyfit.config.typed.signatures import INHERITED, REQUIRED, signature_of
from manyfit.core.errors import ConfigError, FolderError, Origin
from manyfit.core.redaction import Secret


@dataclass(frozen=True)
class Given:
    """The input of a config: files and overrides, merged but not resolved, and their location."""

    tree: Map
    project: FilePath
    file: FilePath | None
    frozen: Mapping[str, Any]
    artifact: Artifact | None = None
    """The restrictions on its classes, if it may come from elsewhere."""
    memo: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)
    """Cached check results, for patches of this config that leave values unchanged."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "memo": {}}


@dataclass(frozen=True)
class Config(Mapping[str, Any]):
    """A checked, frozen config: references resolved, classes imported, parameters of the right type.

    Values are read by item or by attribute, `config["train"]["epochs"]` or `config.train.epochs`; omitted
    values are their defaults. `run` holds the same values as typed objects.
    """

    given: Given
    tree: Map
    """The given values with references resolved, in the layout of the file."""
    meaning: Map
    """The same in the layout of a run."""
    run: Run
    sections: Mapping[str, Any]
    environment: Mapping[str, str]
    kinds: Mapping[Path, Kind]
    classes: Mapping[Path, str]
    defaults: Mapping[Path, Any]
    derived: Mapping[Path, Any]
    folder: str | None = None
    """The run folder, if the config sets it."""

    @property
    def project(self) -> FilePath:
        """The project root, to which paths are relative."""
        return self.given.project

    @property
    def file(self) -> FilePath | None:
        """The file that was read; None for a config from Python."""
        return self.given.file

    @property
    def sources(self) -> tuple[FilePath, ...]:
        """The folders of the user's code."""
        if self.given.artifact is not None:
            return self.given.artifact.sources
        return (self.project / self.run.src_code_path,)

    @cached_property
    def explicit(self) -> dict[str, Any]:
        """The given values in canonical form."""
        return dict(normal(self.tree, self.classes))

    @cached_property
    def fingerprint(self) -> str:
        """The hash of the identity: equal for every spelling and order of the same values and seed."""
        kept = identity(self.explicit, self.kinds)
        frozen = {
            join_path(path): value
            for path, value in self.derived.items()
            if value is not None and self.kinds.get(path) is Kind.IDENTITY
        }
        return hash_data({"given": {**kept, "seed": self.run.seed}, "derived": frozen})

    @cached_property
    def snapshot(self) -> Snapshot:
        """Effective values and kinds, for comparison."""
        kinds = {join_path(path): kind for path, kind in self.kinds.items()}
        implicit = {**self._flat(self.defaults), **self._flat(self.derived)}
        given = flat(self.explicit)
        return Snapshot(
            {**given, **{k: v for k, v in implicit.items() if k not in given}}, kinds, self.fingerprint
        )

    @staticmethod
    def _flat(values: Mapping[Path, Any]) -> dict[str, Any]:
        return {join_path(path): _storable(value) for path, value in values.items()}

    def diff(self, other: Config) -> list[Difference]:
        """Return what differs in `other`, each difference with its kind."""
        return diff_snapshots(self.snapshot, other.snapshot)

    def origin(self, path: str) -> Origin | None:
        """Return where a value was written; None if it was omitted."""
        node = find(self.tree, tuple(path.split("."))) or find(self.meaning, tuple(path.split(".")))
        return node.origin if node is not None else None

    def rows(self) -> Iterator[tuple[str, Any, str, Kind]]:
        """Yield every value with its origin and kind: given values, then defaults, then derived values."""
        for path, node in leaves(self.tree):
            yield join_path(path), plain(node), str(node.origin), self.snapshot.kind(join_path(path))
        for path, value in self.defaults.items():
            yield join_path(path), _storable(value), "default", self.snapshot.kind(join_path(path))
        for path, value in self.derived.items():
            yield join_path(path), _storable(value), "derived", self.snapshot.kind(join_path(path))

    def dump(self) -> str:
        """Return the given values as YAML. Loading it restores an equal config."""
        return dump_parts(_escape(self.tree))

    def dump_given(self) -> str:
        """Return the given values as YAML, with their references."""
        return dump_parts(plain(self.given.tree))

    def to_resolved_yaml(self) -> str:
        """Return the text of `config.resolved.yaml`: given, default and derived values, classes and kinds."""
        rest = {
            "defaults": self._flat(self.defaults),
            "derived": self._flat(self.derived),
            "classes": {join_path(path): name for path, name in self.classes.items()},
            "kinds": {join_path(path): str(kind) for path, kind in self.kinds.items()},
        }
        given = textwrap.indent(self.dump(), "  ")
        return f"config:\n{given}{dump_parts(rest)}fingerprint: '{self.fingerprint}'\n"

    def section(self, name: str) -> Any:
        """Return a custom section as an instance of its class, with its secrets revealed."""
        value = self.sections[name]
        return value.build() if isinstance(value, Component) else value

    @cached_property
    def _view(self) -> Section:
        values = plain(self.tree)
        view = Section.of(
            {
                **values,
                **{f.name: _to_view(getattr(self.run, f.name)) for f in fields(self.run)},
                **{name: _to_view(value) for name, value in self.sections.items()},
            }
        )
        assert isinstance(view, Section)
        return view

    def __getitem__(self, key: str) -> Any:
        return self._view[key]

    def __getattr__(self, key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(key)
        return getattr(self._view, key)

    def __iter__(self) -> Iterator[str]:
        return iter(self._view)

    def __len__(self) -> int:
        return len(self._view)

    def __repr__(self) -> str:
        return f"Config({str(self.file) if self.file else '<python>'!r}, {self.fingerprint[:12]})"

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Config)
            and plain(self.tree) == plain(other.tree)
            and self.derived == other.derived
        )


def snapshot(resolved: Node) -> Snapshot:
    """Return the snapshot of a resolved config, without importing the classes that it names."""
    try:
        parts = plain(resolved)
        inner = resolved.items["config"] if isinstance(resolved, Map) else resolved
        classes: dict[Path, str] = {
            tuple(int(step) if step.isdecimal() else step for step in path.split(".")): name
            for path, name in parts["classes"].items()
        }
        explicit = {
            path: unescape_references(value) if isinstance(value, str) else value
            for path, value in flat(normal(inner, classes)).items()
        }
        kinds = {path: Kind(kind) for path, kind in parts["kinds"].items()}
        implicit = {**parts["defaults"], **parts["derived"]}
        return Snapshot(
            {**explicit, **implicit, **explicit},
            kinds,
            parts["fingerprint"],
            frozenset(implicit.keys() - explicit.keys()),
        )
    except (AssertionError, KeyError, AttributeError, TypeError, ValueError, StopIteration) as error:
        raise FolderError(
            f"{resolved.origin.file} is not a resolved config that manyfit wrote ({error!r})"
        ) from error


def _escape(node: Node) -> Any:
    if isinstance(node, Map):
        return {key: _escape(value) for key, value in node.items.items()}
    if isinstance(node, Seq):
        return [_escape(value) for value in node.items]
    if isinstance(node.value, Secret):
        return str(node.value)
    return escape(node.value) if isinstance(node.value, str) else node.value


def _storable(value: Any) -> Any:
    """Return a default as plain data; for other objects, their `repr`."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _storable(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, list | tuple):
        return [_storable(item) for item in value]
    if isinstance(value, bool | int | float | str) or value is None:
        return value
    try:
        return plain(from_plain(value))
    except ConfigError:
        return repr(value)


def _to_view(value: Any) -> Any:
    """Return typed values as plain data; a component as its mapping, with defaults."""
    if isinstance(value, Component):
        known = {n: p for n, p in signature_of(value.target).parameters.items() if n not in value.supplied}
        unknown = (REQUIRED, INHERITED)
        filled = {n: p.default for n, p in known.items() if not any(p.default is mark for mark in unknown)}
        named = {**filled, **value.params, **value.derived}
        return {"class": value.path, **{key: _to_view(item) for key, item in named.items()}}
    if isinstance(value, Secret):
        return value
    if hasattr(type(value), "model_fields"):
        return {name: _to_view(getattr(value, name)) for name in type(value).model_fields}
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _to_view(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {key: _to_view(item) for key, item in value.items()}
    return [_to_view(item) for item in value] if isinstance(value, list) else value
