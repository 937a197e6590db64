"""Loading and checking a config from a file, a folder or a dict; all problems are raised together."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping
from pathlib import Path as FilePath
from typing import Any

from manyfit.config.config import Config, Given
from manyfit.config.dialects.dialect import Translation, choose_backend
from manyfit.config.dialects.table import (
    ADAPTERS,
    PLAIN,
    adopt,
    config_names,
    dialect_of,
    find_config,
    root_of,
)
from manyfit.config.schema.attributes import attributes_of, check_attributes
from manyfit.config.schema.consistency import contradictions
from manyfit.config.schema.credentials import hide_secrets, know_secrets
from manyfit.config.schema.defaults import Defaults, source_folder
from manyfit.config.schema.needed import check_needed
from manyfit.config.schema.run import Evaluate, Export, Run, Submit, Track, Train
from manyfit.config.tree.layers import Reader, inherit
from manyfit.config.tree.nodes import Leaf, Map, Node, Path, class_word, from_plain, join_path, plain
from manyfit.config.tree.overrides import Overrides, apply, collect
from manyfit.config.tree.project import is_folder, logical, project_root
from manyfit.config.tree.reader import read_file
from manyfit.config.tree.references import Resolver, drop_copied_problems
from manyfit.config.typed.artifacts import Artifact, artifact_at
from manyfit.config.typed.checker import Checker
from manyfit.config.typed.component import Component
from manyfit.config.typed.findings import INVALID
from manyfit.config.typed.moved_classes import current_path
from manyfit.config.typed.roles import ANY, MODEL, TRAINER, Role, is_record
from manyfit.config.typed.signatures import signature_of
from manyfit.core.errors import ConfigError, Origin, Problem, UsageError
from manyfit.core.files import read_bytes
from manyfit.core.names import nearest, show_value

log = logging.getLogger("manyfit")


def load_config(
    source: str | FilePath | Mapping[str, Any],
    overrides: Overrides = (),
    *,
    project: FilePath | None = None,
    frozen: Mapping[str, Any] | None = None,
    trust: bool = False,
) -> Config:
    """Load and check a config: a YAML file, a run folder, or the same tree as a dict.

    Raises `ConfigError` with every problem at once. `frozen` holds derived values that were fixed earlier.
    The config of a run that was trained elsewhere is data: unless you `trust` it, it may name only allowed
    classes and the code of the current project.
    """
    problems: list[Problem] = []
    if not isinstance(source, Mapping):
        check_name(str(source))
    file = None if isinstance(source, Mapping) else config_file(FilePath(source))
    root = (project or (root_of(file) if file else FilePath.cwd())).resolve()
    reader = Reader(problems)
    if file is not None and not file.exists():
        raise ConfigError([_no_file(file, reader)])
    laid = reader.read(file) if file is not None else reader.extend(from_plain(source), root)
    if laid is None:
        raise ConfigError(problems)
    tree, stored = _unwrap(laid)
    artifact = artifact_at(file) if file is not None and not trust else None
    if artifact is None:
        know_secrets(tree)
    _check_only(file, reader, tree, problems)
    tree = _apply_overrides(tree, overrides, problems)
    root = _root(tree, root)
    if artifact is not None:
        tree = _without_trackers(tree)
    if file is not None:
        tree = adopt(tree, file, root)
    return _check(Given(tree, root, file, {**stored, **(frozen or {})}, artifact), problems)


def patch(config: Config, overrides: Overrides = (), *, frozen: Mapping[str, Any] | None = None) -> Config:
    """Return a config with further overrides or other frozen values, checked again. No file is read."""
    problems: list[Problem] = []
    tree = _apply_overrides(config.given.tree, overrides, problems)
    given = dataclasses.replace(config.given, tree=tree)
    if frozen is not None:
        given = dataclasses.replace(given, frozen=frozen, memo={})
    return _check(given, problems)


def _without_trackers(tree: Map) -> Map:
    """Remove `track`: a config from elsewhere must not decide where results are sent."""
    return tree.without("track") if "track" in tree.items else tree


def _explain_closed(artifact: Artifact | None) -> str:
    return f"{artifact.place} was not made here" if artifact is not None else ""


def load_subject(file: FilePath, trust: bool = False) -> Component:
    """Load the component that a resolved config trains: the model, or a trainer with its own networks.

    Only this one is loaded: other sections may need secrets that are not set.
    """
    artifact = artifact_at(file) if not trust else None
    tree, _ = _unwrap(_mapping(read_file(file)))
    project = _root(tree, project_root(file))
    tree = _translate(tree, project).tree
    role = MODEL if "model" in tree.items or "trainer" not in tree.items else TRAINER
    section = role.name
    if section not in tree.items:
        raise ConfigError([Problem(section, tree.origin, f"this config has no {section}")])
    resolver = Resolver(Map({section: tree.items[section]}), os.environ, closed=_explain_closed(artifact))
    part = resolver.resolve()
    checker = Checker(part, project, source_folder(tree, project), {}, artifact=artifact)
    component = checker.component(part.items[section], role, (section,), keep=True)
    _check_settings(checker, part.items[section])
    if resolver.problems or checker.problems:
        raise ConfigError([*resolver.problems, *checker.problems])
    assert isinstance(component, Component)
    return component


def make_component(
    given: Mapping[str, Any],
    name: str,
    role: Role,
    project: FilePath,
    source: FilePath,
    artifact: Artifact | None = None,
) -> Component:
    """Create a component from plain data: `{"class": path, **params}`."""
    if current_path(str(given.get("class"))) in ADAPTERS:
        choose_backend()
    part = Map({name: from_plain(dict(given))})
    checker = Checker(part, project, source if is_folder(source) else None, {}, artifact=artifact)
    component = checker.component(part.items[name], role, (name,), keep=True)
    _check_settings(checker, part.items[name])
    if checker.problems:
        raise ConfigError(checker.problems)
    assert isinstance(component, Component)
    return component


def _check_settings(checker: Checker, node: Node) -> None:
    """Check the settings that component classes read, before they read them."""
    settings = node.items.get("settings") if isinstance(node, Map) else None
    if checker.artifact is not None and isinstance(settings, Map):
        for cls in filter(attributes_of, checker.named_classes):
            check_attributes(checker, cls, settings, cls.section)


def _mapping(node: Node) -> Map:
    if not isinstance(node, Map):
        raise ConfigError([Problem("", node.origin, "this is not a mapping")])
    return node


def config_file(place: FilePath) -> FilePath:
    """Return the config file for a path: a file; in a folder, `config.yaml` or the only YAML file.

    Any other path may be the name of a variant.
    """
    usual = place / "config.yaml"
    if not place.is_dir():
        return place if place.exists() else find_config(str(place)) or place
    found = list_config_files(place)
    if usual in found or (usual.exists() and len(found) != 1):
        return usual
    if len(found) > 1:
        names = ", ".join(file.name for file in found)
        raise ConfigError([Problem("", Origin(str(place)), f"several configs: {names}", "exactly one")])
    return found[0] if found else place / "config.yaml"


def list_config_files(folder: FilePath) -> list[FilePath]:
    """Return the YAML files in a folder, except those that manyfit wrote."""
    found = sorted(file for file in folder.iterdir() if file.suffix in (".yaml", ".yml") and file.is_file())
    return [file for file in found if not _is_ours(file)]


def _is_ours(file: FilePath) -> bool:
    return read_bytes(file).startswith((b"# Written by manyfit", b"# Copied by manyfit"))


def _check_only(file: FilePath | None, reader: Reader, tree: Map, problems: list[Problem]) -> None:
    """Record further configs in the run folder, for layouts that allow only one."""
    dialect = dialect_of(tree)
    if file is None or not dialect.alone:
        return
    used = {read.resolve() for read in reader.files}
    others = [other.name for other in list_config_files(file.parent) if other.resolve() not in used]
    if file.name == "config.yaml" and others:
        message = f"further configs in this folder: {', '.join(others)}"
        problems.append(Problem("", Origin(reader.display_file(file)), message, "exactly one per run folder"))


def check_name(text: str) -> None:
    """Raise `ConfigError` for a path that no file can have, or that cannot be encoded as UTF-8."""
    try:
        str(logical(FilePath(text))).encode()
    except UnicodeEncodeError:
        hint = "a UTF-8 name, and a locale that supports it (LC_ALL=C.UTF-8, or PYTHONUTF8=1)"
        raise ConfigError(
            [Problem("", Origin(show_value(text)), "this path is not UTF-8 here", hint)]
        ) from None
    except ValueError:
        pass  # reported below
    try:
        FilePath(text).stat()
    except FileNotFoundError:
        return
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(
            [Problem("", Origin(show_value(text)), f"not a valid path of a config: {reason}")]
        ) from None


def _apply_overrides(tree: Map, overrides: Overrides, problems: list[Problem]) -> Map:
    dialect = dialect_of(tree)
    for override in collect(overrides, problems):
        log.debug("%s %s", override.action, join_path(override.path))  # not the value, which may be a secret
        if override.path == PLAIN.epochs:
            override = dataclasses.replace(override, path=dialect.epochs)  # the key in this layout
        tree = apply(tree, override, problems)
    return hide_secrets(tree)


def _check(given: Given, problems: list[Problem]) -> Config:
    if is_study(given.tree):
        place = given.tree.origin.file.removesuffix("/study.yaml")
        raise UsageError(f"{place} is a study, not a run; use: manyfit sweep {place}")
    laid = inherit(given.tree, problems)
    artifact = given.artifact
    resolver = Resolver(laid, os.environ, closed=_explain_closed(artifact))
    resolver.default = Defaults(laid, given.project, given.frozen, artifact, resolver.find, given.memo).at
    written = resolver.resolve()
    problems += resolver.problems
    meaning = _translate(written, given.project)
    problems += meaning.problems
    if meaning.problems:  # early: checking classes may import TensorFlow, which takes seconds
        raise ConfigError(sorted(problems, key=lambda p: _place(p.origin)))
    tree = meaning.tree
    problems += _source_problems(tree, given.project) if artifact is None else []
    checker = _make_checker(given, tree)
    run, sections = _check_tree(checker, written)
    problems += [meaning.restore_problem(problem) for problem in checker.problems]
    if problems:
        found = drop_copied_problems(problems, given.tree)
        raise ConfigError(sorted(found, key=lambda p: (p.origin.file != tree.origin.file, *_place(p.origin))))
    learned: list[dict[Path, Any]] = [checker.kinds, checker.classes, checker.defaults, checker.derived]
    kinds, classes, defaults, derived = learned if tree is written else map(meaning.facts, learned)
    return Config(
        given,
        written,
        tree,
        run,
        sections,
        resolver.environment,
        {**kinds, **meaning.kinds},
        classes,
        {**defaults, **meaning.assumed},
        derived,
        meaning.folder,
    )


def _make_checker(given: Given, tree: Map) -> Checker:
    source = source_folder(tree, given.project)
    memo = given.memo.setdefault(source, {})
    checker = Checker(tree, given.project, source, given.frozen, memo, given.artifact)
    checker.sections = [
        ("train", signature_of(Train).parameters),
        ("evaluate", signature_of(Evaluate).parameters),
        ("export", signature_of(Export).parameters),
        ("track", signature_of(Track).parameters),
        ("submit", signature_of(Submit).parameters),
    ]
    return checker


def _check_tree(checker: Checker, written: Map) -> tuple[Any, dict[str, Any]]:
    """Return the run and the custom sections; problems are collected in the checker."""
    tree = checker.root
    assert isinstance(tree, Map)
    known = signature_of(Run).parameters
    misplaced = ("optimizer", "loss", "scheduler", "metrics")  # keys of train, not names of sections
    own = {
        name
        for name, node in tree.items.items()
        if name not in known and name not in misplaced and _is_section(node)
    }
    sections = {name: _section(checker, name) for name in tree.items if name in own}
    rest = Map({k: v for k, v in tree.items.items() if k not in own}, tree.origin, tree.keys)
    run = checker.record(rest, Run, ())
    check_needed(checker, run)
    if tree is not written:
        checker.root = written
        for cls in filter(attributes_of, checker.named_classes):
            check_attributes(checker, cls, written, cls.section)
        checker.root = tree
    if isinstance(run, Run) and (run.model or run.trainer):
        for found in contradictions(run):
            checker.problem(checker.locate(found.path), *found)
    return run, sections


def _translate(tree: Map, project: FilePath) -> Translation:
    """Translate a config of another layout; return others unchanged."""
    dialect = dialect_of(tree)
    if dialect is not PLAIN:
        choose_backend()
    return dialect.translate(tree, project)


def _root(tree: Map, root: FilePath) -> FilePath:
    """Return the project root: `project_path` of the config, else `root`."""
    node = tree.items.get("project_path")
    is_said = isinstance(node, Leaf) and isinstance(node.value, str) and node.value
    return (root / node.value).resolve() if is_said else root  # type: ignore[union-attr, operator]


def _place(origin: Origin) -> tuple[str, int]:
    return origin.file, origin.line


def _source_problems(tree: Map, project: FilePath) -> list[Problem]:
    """Return a problem if `src_code_path` is set but does not exist."""
    node = tree.items.get("src_code_path")
    if not (isinstance(node, Leaf) and isinstance(node.value, str)) or is_folder(project / node.value):
        return []
    expected = f"a folder in {project.name}/"
    return [Problem("src_code_path", node.origin, "no such folder", expected, repr(node.value))]


def _is_section(node: Node) -> bool:
    return isinstance(node, Map) and bool(class_word(node))


def _section(checker: Checker, name: str) -> Any:
    """Check a custom section: a dataclass or pydantic model, named by `class`."""
    assert isinstance(checker.root, Map)
    node = checker.root.items[name]
    value = checker.component(node, ANY, (name,))
    target = value.target if isinstance(value, Component) else type(value)
    if hasattr(Config, name):
        checker.fail(node, (name,), "a config already has an attribute of this name; rename the section")
    if (name,) not in checker.classes or (value is not INVALID and not is_record(target)):
        known = signature_of(Run).parameters
        checker.problem(
            checker.locate((name,)),
            (name,),
            "unknown key, and not a custom section",
            f"one of {', '.join(known)}; or a dataclass or a pydantic model",
            name,
            nearest(name, known),
        )
    return value


def _unwrap(tree: Map) -> tuple[Map, dict[str, Any]]:
    """Return the config and the frozen derived values of a resolved config; other trees unchanged."""
    inner, derived = tree.items.get("config"), tree.items.get("derived")
    if isinstance(inner, Map) and isinstance(derived, Map) and "fingerprint" in tree.items:
        return inner, dict(plain(derived))
    return tree, {}


def is_study(tree: Map) -> bool:
    """Return whether a file is a study: it has a search space and a base config."""
    return "space" in tree.items and "base" in tree.items and "model" not in tree.items


def _no_file(file: FilePath, reader: Reader) -> Problem:
    """Return the problem of a missing file, with the most similar run."""
    wanted, runs = file.name, list(file.parent.glob("*/config.yaml"))
    if file.name == "config.yaml":
        wanted, runs = file.parent.name, list(file.parent.parent.glob("*/config.yaml"))
    names = {entry.name: entry for entry in [*(run.parent for run in runs), *file.parent.glob("*.y*ml")]}
    best = nearest(wanted, names)
    suggestion = reader.display_file(names[best]) if best else nearest(str(file), config_names())
    return Problem(
        "",
        Origin(reader.display_file(file)),
        "no such config",
        "a run folder with a config.yaml, a YAML file, or the name of a variant",
        suggestion=suggestion,
    )
