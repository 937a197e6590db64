"""The facade: load a config, read it, compare it, write it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cached_property
from pathlib import Path as FilePath
from typing import Any

from manyfit.config.check import INVALID, Checker, is_record
from manyfit.config.component import Component
from manyfit.config.defaults import default_at
from manyfit.config.identity import Difference, Snapshot, diff, digest, flat, identity, normal
from manyfit.config.kinds import Kind
from manyfit.config.layers import Reader, inherit, lay
from manyfit.config.override import Overrides, apply, collect
from manyfit.config.project import project_root
from manyfit.config.read import dump, read_text
from manyfit.config.refer import Resolver, escape
from manyfit.config.roles import ANY
from manyfit.config.schema import Run
from manyfit.config.section import Section
from manyfit.config.signature import signature_of
from manyfit.config.tree import Leaf, Map, Node, Path, Seq, dotted, find, from_plain, leaves, plain
from manyfit.core.errors import ConfigError, FolderError, Origin, Problem
from manyfit.core.names import nearest
from manyfit.core.secrets import Secret


@dataclass(frozen=True)
class Config(Mapping[str, Any]):
    """A checked, frozen config: references resolved, classes found, parameters of the right type.

    Values are read by item or by attribute, `config["train"]["epochs"]` or `config.train.epochs`; values that
    nobody gave are their defaults. `run` holds the same as typed objects.
    """

    tree: Map
    run: Run
    sections: Mapping[str, Any]
    project: FilePath
    file: FilePath | None
    files: tuple[FilePath, ...]
    environment: Mapping[str, str]
    kinds: Mapping[Path, Kind]
    classes: Mapping[Path, str]
    defaults: Mapping[Path, Any]
    derived: Mapping[Path, Any]

    @cached_property
    def explicit(self) -> dict[str, Any]:
        """What was given, in its one spelling."""
        return dict(normal(self.tree, self.classes))

    @cached_property
    def fingerprint(self) -> str:
        """The identity of the run: the same for every spelling and order of the same values and seed."""
        kept = identity(self.explicit, self.kinds)
        frozen = {
            dotted(path): value
            for path, value in self.derived.items()
            if value is not None and self.kinds.get(path) is Kind.IDENTITY
        }
        return digest({"given": {**kept, "seed": self.run.seed}, "derived": frozen})

    @cached_property
    def snapshot(self) -> Snapshot:
        """Effective values and kinds, for comparison."""
        return snapshot(read_text(self.resolved(), "<resolved>"))

    def diff(self, other: Config) -> list[Difference]:
        """What is different in `other`, each difference with its kind."""
        return diff(self.snapshot, other.snapshot)

    def origin(self, path: str) -> Origin | None:
        """Where a value was written; None if nobody gave it."""
        node = find(self.tree, tuple(path.split(".")))
        return node.origin if node is not None else None

    def rows(self) -> Iterator[tuple[str, Any, str, Kind]]:
        """Every value with its origin and kind: those that were given, then defaults and derived ones."""
        for path, node in leaves(self.tree):
            yield dotted(path), plain(node), str(node.origin), self.snapshot.kind(dotted(path))
        for path, value in self.defaults.items():
            yield dotted(path), _storable(value), "default", self.snapshot.kind(dotted(path))
        for path, value in self.derived.items():
            yield dotted(path), _storable(value), "derived", self.snapshot.kind(dotted(path))

    def dump(self) -> str:
        """Write what was given as YAML. Loading it gives an equal config."""
        return dump(_escaped(self.tree))

    def resolved(self) -> str:
        """The text of `config.resolved.yaml`: what was given, what was filled in, and what it all means."""
        document = {
            "config": _escaped(self.tree),
            "defaults": {dotted(path): _storable(value) for path, value in self.defaults.items()},
            "derived": {dotted(path): _storable(value) for path, value in self.derived.items()},
            "classes": {dotted(path): name for path, name in self.classes.items()},
            "kinds": {dotted(path): str(kind) for path, kind in self.kinds.items()},
            "fingerprint": self.fingerprint,
        }
        return dump(document)

    def section(self, name: str) -> Any:
        """A user's own section as the object that its class makes, with its secrets filled in."""
        value = self.sections[name]
        return value.build() if isinstance(value, Component) else value

    @cached_property
    def _view(self) -> Section:
        values = plain(self.tree)
        view = Section.of(
            {
                **values,
                **{f.name: _viewed(getattr(self.run, f.name)) for f in fields(self.run)},
                **{name: _viewed(value) for name, value in self.sections.items()},
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

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Config)
            and plain(self.tree) == plain(other.tree)
            and self.derived == other.derived
        )


def load_config(
    source: str | FilePath | Mapping[str, Any],
    overrides: Overrides = (),
    *,
    project: FilePath | None = None,
    frozen: Mapping[str, Any] | None = None,
) -> Config:
    """Load and check a config: a YAML file, a run folder, or the same tree as a dict.

    Raises `ConfigError` with every problem at once. `frozen` are derived values that were fixed before.
    """
    problems: list[Problem] = []
    file = None if isinstance(source, Mapping) else config_file(FilePath(source))
    root = (project or (project_root(file) if file else FilePath.cwd())).resolve()
    reader = Reader(root, problems)
    if file is not None:
        if not file.exists():
            raise ConfigError([_no_file(file, reader)])
        given: Node | None = reader.read(file)
    else:
        assert isinstance(source, Mapping)
        given = lay(None, from_plain(source), problems)
    if given is None:
        raise ConfigError(problems)
    assert isinstance(given, Map)
    given, stored = _unwrap(given)
    for override in collect(overrides, problems):
        given = apply(given, override, problems)
    return _checked(
        inherit(given, problems), problems, root, file, tuple(reader.files), {**stored, **(frozen or {})}
    )


def config_file(place: FilePath) -> FilePath:
    """The config that a path means: the file itself, or `config.yaml` in a folder."""
    return place / "config.yaml" if place.is_dir() else place


def _no_file(file: FilePath, reader: Reader) -> Problem:
    """A path that leads nowhere, with the run that was probably meant."""
    runs = (
        [entry.parent for entry in file.parent.parent.glob("*/config.yaml")]
        if file.name == "config.yaml"
        else []
    )
    if file.suffix not in (".yaml", ".yml"):
        runs += [entry.parent for entry in file.parent.glob("*/config.yaml")]
    names = {entry.name: entry for entry in [*runs, *file.parent.glob("*.y*ml")]}
    wanted = file.parent.name if file.name == "config.yaml" else file.name
    best = nearest(wanted, names)
    return Problem(
        "",
        Origin(reader.shown(file)),
        "there is no such config",
        "a run folder with a config.yaml, or a YAML file",
        suggestion=reader.shown(names[best]) if best else "",
    )


def _checked(
    given: Map,
    problems: list[Problem],
    project: FilePath,
    file: FilePath | None,
    files: tuple[FilePath, ...],
    frozen: Mapping[str, Any],
) -> Config:
    resolver = Resolver(given, os.environ, lambda path: default_at(given, path, project / "src"))
    tree = resolver.resolve()
    problems += resolver.problems
    checker = Checker(tree, project, _source(tree, project, problems), frozen)
    own = {
        name
        for name in tree.items
        if name not in signature_of(Run).parameters and _is_section(tree.items[name])
    }
    sections = {name: _section(checker, name) for name in sorted(own)}
    run = checker.record(
        Map({k: v for k, v in tree.items.items() if k not in own}, tree.origin, tree.keys), Run, ()
    )
    problems += checker.problems
    if problems:
        raise ConfigError(
            sorted(
                problems, key=lambda p: (p.origin.file != str(tree.origin.file), p.origin.file, p.origin.line)
            )
        )
    return Config(
        tree,
        run,
        sections,
        project,
        file,
        files,
        resolver.environment,
        checker.kinds,
        checker.classes,
        checker.defaults,
        checker.derived,
    )


def _source(tree: Map, project: FilePath, problems: list[Problem]) -> FilePath | None:
    """The folder of the user's code, if there is one."""
    node = tree.items.get("src_code_path")
    if not (isinstance(node, Leaf) and isinstance(node.value, str)):
        return project / "src" if node is None and (project / "src").is_dir() else None
    folder = project / node.value
    if not folder.is_dir():
        problems.append(
            Problem(
                "src_code_path",
                node.origin,
                "there is no such folder",
                f"a folder in {project.name}/",
                repr(node.value),
            )
        )
        return None
    return folder


def _is_section(node: Node) -> bool:
    return isinstance(node, Map) and any(word in node.items for word in ("class", "_target_"))


def _section(checker: Checker, name: str) -> Any:
    """Check a section of the user's own: a dataclass or pydantic model, named by `class`."""
    node = checker.root.items[name] if isinstance(checker.root, Map) else checker.root
    before = len(checker.problems)
    value = checker.component(node, ANY, (name,))
    target = value.target if isinstance(value, Component) else type(value)
    if value is not INVALID and not is_record(target):
        checker.unknown(
            Map({name: node}, checker.root.origin, {name: checker.located((name,))}),
            name,
            signature_of(Run).parameters,
            (),
            "a config",
        )
        checker.fail(node, (name,), "a section of your own must be a dataclass or a pydantic model")
    elif value is INVALID and len(checker.problems) > before:
        checker.problem(
            checker.located((name,)),
            (name,),
            "this would be a section of your own",
            "a dataclass or pydantic model; the sections of a run are "
            + ", ".join(signature_of(Run).parameters),
        )
    return value


def snapshot(resolved: Node) -> Snapshot:
    """Read a resolved config for comparison, without importing what it names."""
    try:
        assert isinstance(resolved, Map)
        parts = plain(resolved)
        classes: dict[Path, str] = {
            tuple(int(step) if step.isdecimal() else step for step in path.split(".")): name
            for path, name in parts["classes"].items()
        }
        explicit = flat(normal(resolved.items["config"], classes))
        kinds = {path: Kind(kind) for path, kind in parts["kinds"].items()}
        return Snapshot({**parts["defaults"], **parts["derived"], **explicit}, kinds, parts["fingerprint"])
    except (AssertionError, KeyError, AttributeError, TypeError, ValueError, StopIteration) as error:
        raise FolderError(
            f"{resolved.origin.file} is not a resolved config that manyfit wrote ({error!r})"
        ) from error


def _unwrap(tree: Map) -> tuple[Map, dict[str, Any]]:
    """A resolved config holds the config itself and its frozen derived values."""
    inner, derived = tree.items.get("config"), tree.items.get("derived")
    if isinstance(inner, Map) and isinstance(derived, Map) and "fingerprint" in tree.items:
        return inner, dict(plain(derived))
    return tree, {}


def _escaped(node: Node) -> Any:
    if isinstance(node, Map):
        return {key: _escaped(value) for key, value in node.items.items()}
    if isinstance(node, Seq):
        return [_escaped(value) for value in node.items]
    if isinstance(node.value, Secret):
        return str(node.value)
    return escape(node.value) if isinstance(node.value, str) else node.value


def _storable(value: Any) -> Any:
    """A default as plain data; what is not data is described."""
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


def _viewed(value: Any) -> Any:
    """Typed values as data that can be read by item and attribute; components as their mapping."""
    if isinstance(value, Component):
        named = {"class": value.path, **value.params}
        return {key: _viewed(item) for key, item in named.items()}
    if isinstance(value, Secret):
        return value
    if hasattr(type(value), "model_fields"):
        return {name: _viewed(getattr(value, name)) for name in type(value).model_fields}
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _viewed(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {key: _viewed(item) for key, item in value.items()}
    return [_viewed(item) for item in value] if isinstance(value, list) else value
