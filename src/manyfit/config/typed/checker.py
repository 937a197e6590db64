"""Checks of components and records: class paths, parameters, sections and their derived fields."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path as FilePath
from typing import Any, Final

from manyfit.config.tree.nodes import Leaf, Map, Node, Path, Seq, Unresolved, class_word, join_path
from manyfit.config.typed import torch_facts
from manyfit.config.typed.allowed_classes import LOCAL, NO_MAPPINGS, REFUSED
from manyfit.config.typed.artifacts import HINT, Artifact
from manyfit.config.typed.class_paths import ResolveError, canonical, resolve
from manyfit.config.typed.component import Component, is_plain, with_fields
from manyfit.config.typed.findings import INVALID, WRONG_TYPE
from manyfit.config.typed.kinds import Derived, Kind
from manyfit.config.typed.roles import (
    ANY,
    CALLABLE,
    Role,
    Trust,
    is_record,
    list_supplied,
    qualify,
    refusal,
)
from manyfit.config.typed.signatures import (
    INHERITED,
    REQUIRED,
    Parameter,
    Signature,
    optional_parameters,
    signature_of,
)
from manyfit.config.typed.values import Values
from manyfit.config.typed.wording import MISPLACED, expectation, short_names
from manyfit.core.names import indefinite, listing, nearest
from manyfit.core.redaction import Secret

LEARNED: Final = ("kinds", "classes", "defaults", "derived")


class Checker(Values):
    """Checker of one tree. `frozen` holds derived values that were fixed earlier."""

    sections: Iterable[tuple[str, Iterable[str]]] = ()
    """The sections of a run and their keys, for suggestions about unknown top-level keys."""
    takes_sections = True
    """Whether custom sections are allowed at the top level."""

    def __init__(
        self,
        root: Node,
        project: FilePath,
        source: FilePath | None,
        frozen: Mapping[str, Any],
        memo: dict[Any, Any] | None = None,
        artifact: Artifact | None = None,
    ) -> None:
        """`artifact` restricts what may be built if the tree may come from elsewhere."""
        super().__init__(root, project, source)
        self.artifact = artifact
        self.frozen = frozen
        self.memo = memo if memo is not None else {}
        self.named_classes: list[Any] = []
        """Classes given as values rather than built, also if the config has problems."""
        self.inside = 0
        """Number of components around the current value."""

    # -- components -------------------------------------------------------------------------------

    def component(
        self, node: Node, role: Role, path: Path, wanted: type | None = None, keep: bool = False
    ) -> Any:
        """Check `{class: path, **params}`, or its short form, the path alone.

        With `keep`, the section stores the component itself, which is built later.
        """
        if not keep:
            return self._component(node, role, path, wanted, keep)
        return self.check_once(
            (path, role), node, lambda: self._component(node, role, path, wanted, keep=True)
        )

    def check_once(
        self, key: tuple[Path, object], subject: object, check: Callable[[], Any], against: object = None
    ) -> Any:
        """Check the value at a path, or return the cached result if the same object was checked before.

        Only valid results are cached, together with the facts collected. Values inside a component are not
        cached: their check depends on the component.
        """
        if self.inside:
            return check()
        known: _Known | None = self.memo.get(key)
        if known is None or known.subject is not subject or known.against is not against:
            outer, before = [getattr(self, name) for name in LEARNED], len(self.problems)
            for name in LEARNED:
                setattr(self, name, {})
            try:
                value = check()
                learned = {name: found for name in LEARNED if (found := getattr(self, name))}
                known = _Known(subject, against, value, learned)
            finally:
                for name, found in zip(LEARNED, outer, strict=True):
                    setattr(self, name, found)
            if len(self.problems) == before:
                self.memo[key] = known
        for name, facts in known.learned.items():
            getattr(self, name).update(facts)
        return known.value

    def _component(self, node: Node, role: Role, path: Path, wanted: type | None, keep: bool) -> Any:
        key = class_word(node) if isinstance(node, Map) else ""
        named = node.items[key] if isinstance(node, Map) and key else node
        if isinstance(named, Leaf) and isinstance(named.value, Unresolved):
            return INVALID
        if not (isinstance(named, Leaf) and isinstance(named.value, str)):
            got = "a mapping without `class`" if isinstance(node, Map) and not key else ""
            expected = "{class: path, ...}" + short_names(role)
            return self.fail(node, path, f"not {indefinite(role.name)}", expected, got)
        named_at = (*path, key) if key else path
        target = self.target(named.value, role, named, named_at)
        if target is INVALID:
            return INVALID
        reason = refusal(target, role, self.trust(path), wanted)
        if reason:
            expected = (
                role.wanted if wanted is None or role is not ANY else f"a subclass of {qualify(wanted)}"
            )
            return self.fail(named, named_at, f"wrong role: {reason}", expected, repr(named.value))
        self.classes[path] = canonical(named.value, role)
        params = node.without(key) if isinstance(node, Map) and key else Map({}, node.origin)
        return self.check_call(target, role, params, path, named.value if keep else None)

    def class_of(self, node: Node, role: Role, path: Path, optional: bool) -> Any:
        """Return the class itself, given by its path, if it fits the role."""
        if optional and isinstance(node, Leaf) and node.value is None:
            return None
        if not (isinstance(node, Leaf) and isinstance(node.value, str)):
            return self.fail(node, path, WRONG_TYPE, f"the class path of {indefinite(role.name)}")
        target = self.target(node.value, role, node, path)
        if target is INVALID:
            return INVALID
        reason = refusal(target, role, self.trust(path))
        if reason:
            return self.fail(node, path, f"wrong role: {reason}", role.wanted, repr(node.value))
        self.named_classes.append(target)
        return target

    def check_call(self, target: Any, role: Role, params: Map, path: Path, kept_as: str | None) -> Any:
        """Check the parameters of a class or function that fits its role."""
        name = self.classes[path]
        supplied = list_supplied(target, role)
        deferred = not inspect.isclass(target) and (bool(role.function_of) or role is CALLABLE)
        signature = optional_parameters(target) if deferred and role is CALLABLE else signature_of(target)
        keep = kept_as is not None
        waived = ["", ""]
        if keep or path[:2] in (("train", "scheduler"), ("train", "momentum_scheduler")):  # also nested ones
            waived = [torch_facts.missing_horizon(name, params.items)]
            waived.append(torch_facts.missing_rate(name, params.items))
        own = {key for key in role.beside if key in params.items and key not in signature.parameters}
        self.inside += 1
        beside = {
            key: self.parameter(params.items[key], Parameter(key, role.beside[key]), (*path, key), name)
            for key in own
        }
        params = params.without(*own)
        given = self.parameters(params, signature, (*supplied, *waived), path, name)
        self.inside -= 1
        if given is INVALID or INVALID in beside.values():
            return INVALID
        where = self.locate(path)
        component = Component(
            target,
            name,
            given,
            role,
            join_path(path),
            where,
            supplied,
            deferred,
            keep,
            kept_as or name,
            beside,
        )
        return self.finish(component, params, path) if is_record(target) and not keep else component

    def target(self, text: str, role: Role, node: Leaf, path: Path) -> Any:
        """Import the object that a class path names, if this is allowed."""
        name, source, artifact = canonical(text, role), self.source, self.artifact
        if artifact is not None:
            reason, source = artifact.refuses(name), artifact.source_of(name)
            if reason:
                return self.fail(node, path, reason, HINT, repr(text))
        found: Any = None
        for step in artifact.steps(name) if artifact is not None else [text]:
            try:
                found = resolve(step, role, source)
            except ResolveError as error:
                return self.fail(node, path, str(error), error.expected, repr(text), error.suggestion)
            if artifact is not None and (reason := artifact.disowns(name, found)):
                return self.fail(node, path, reason, HINT, repr(text))
        return found

    def trust(self, path: Path) -> Trust:
        """Return whose code is allowed at `path`: the user's, torch's, and the enclosing component's."""
        around = [self.classes[path[:n]] for n in range(len(path)) if path[:n] in self.classes]
        owners = {name.partition(".")[0] for name in around} - set(sys.stdlib_module_names)
        own = (self.source,) if self.source is not None else ()
        sources = self.artifact.sources if self.artifact is not None else own
        return Trust(sources, frozenset(owners - {"torch", "manyfit"}))

    def parameters(
        self, node: Map, signature: Signature, supplied: Sequence[str], path: Path, name: str
    ) -> Any:
        """Check every parameter, and that none is missing or unknown."""
        before = len(self.problems)
        known = {key: p for key, p in signature.parameters.items() if key not in supplied}
        given: dict[str, Any] = {}
        for key, item in node.items.items():
            if key in known:
                given[key] = self.parameter(item, known[key], (*path, key), name)
            elif key in supplied and key in signature.parameters:
                self.problem(node.key_origin(key), (*path, key), f"{key!r} is supplied by manyfit; remove it")
            elif signature.open:
                open_ = Parameter(key)
                given[key] = self.parameter(item, open_, (*path, key), name)
            else:
                settable = [key for key, p in known.items() if find_derived_mark(p) is None]
                self.unknown(node, key, settable, path, name)
        missing = tuple(key for key in known if key not in node.items)
        given |= self.check_once((path, missing), signature, lambda: self.missing(known, missing, path, name))
        broken = len(self.problems) > before or any(value is INVALID for value in given.values())
        return INVALID if broken else given

    def missing(
        self, known: Mapping[str, Parameter], names: Iterable[str], path: Path, owner: str
    ) -> dict[str, Any]:
        """Check that omitted parameters are optional; return default paths relative to the project."""
        given: dict[str, Any] = {}
        for key in names:
            parameter = known[key]
            if parameter.required:
                self.problem(
                    self.locate(path),
                    (*path, key),
                    f"{owner} requires the parameter {key!r}",
                    expectation(parameter.annotation),
                    "nothing",
                )
            elif find_derived_mark(parameter) is None and parameter.default is not REQUIRED:
                self.default(parameter, (*path, key))
                if isinstance(parameter.default, FilePath) and not parameter.default.is_absolute():
                    given[key] = self.project / parameter.default
        return given

    def parameter(self, node: Node, parameter: Parameter, path: Path, owner: str) -> Any:
        """Check one parameter; null is accepted if it is the default."""
        return self.check_once(
            (path, id(parameter)), node, lambda: self._parameter(node, parameter, path, owner), parameter
        )

    def _parameter(self, node: Node, parameter: Parameter, path: Path, owner: str) -> Any:
        if find_derived_mark(parameter) is not None:
            return self.fail(node, path, "this value is derived from other values; remove it")
        if isinstance(node, Leaf) and node.value is None and parameter.default is None:
            self.mark(parameter, path)
            return None
        if self.artifact is not None and (reason := _explain_refusal(node, parameter.name, owner)):
            return self.fail(node, path, f"{self.artifact.place} was not made here: {reason}", HINT)
        if torch_facts.takes_dtype(owner, parameter.name):
            return self.dtype(node, path)
        return self.value(node, parameter.annotation, path)

    def unknown(self, node: Map, key: str, known: Iterable[str], path: Path, name: str) -> None:
        """Record an unknown key, with the nearest valid one."""
        origin = node.key_origin(key)
        where = "" if origin.line else f" ({join_path(path) or 'the config'} is at {self.locate(path)})"
        names = [*known, *(["extend"] if not path and self.takes_sections else [])]
        expected = f"one of {listing(names, 24)}" if names else "no parameters"
        best = nearest(key, names)
        if not path and self.takes_sections:
            expected += "; or a custom section: a mapping with `class`"
            best = best or MISPLACED.get(key, "")
            best = best or next((f"{name}.{key}" for name, known in self.sections if key in known), "")
        if path == ("train",) and self.takes_sections:
            best = best or MISPLACED.get(key, "")
        self.problem(origin, (*path, key), f"unknown key for {name}{where}", expected, key, best)

    def record(self, node: Node, wanted: type, path: Path) -> Any:
        """Check a dataclass, pydantic model or TypedDict, written as a mapping without `class`."""
        return self.check_once((path, wanted), node, lambda: self._record(node, wanted, path))

    def _record(self, node: Node, wanted: type, path: Path) -> Any:
        if not isinstance(node, Map):
            return self.fail(node, path, WRONG_TYPE, f"a mapping for {wanted.__qualname__}")
        if typing.is_typeddict(wanted):
            hints = typing.get_type_hints(wanted, include_extras=True)
            required: frozenset[str] = getattr(wanted, "__required_keys__", frozenset())
            fields = {
                key: Parameter(key, hint, REQUIRED if key in required else INHERITED)
                for key, hint in hints.items()
            }
            return self.parameters(node, Signature(fields), (), path, wanted.__qualname__)
        given = self.parameters(node, signature_of(wanted), (), path, join_path(path) or "a config")
        if given is INVALID:
            return INVALID
        return self.finish(
            Component(wanted, qualify(wanted), given, ANY, join_path(path), self.locate(path)), node, path
        )

    def finish(self, record: Component, node: Node, path: Path) -> Any:
        """Create the record now if it holds only data; compute its derived fields."""
        shown = {name: str(v) if isinstance(v, Secret) else v for name, v in record.params.items()}
        if not is_plain(shown):
            return record
        derived = {}
        try:
            made = record.target(**shown)
            for parameter, mark in list_derived(record.target):
                where = (*path, parameter.name)
                key = join_path(where)
                found = self.frozen[key] if key in self.frozen else mark.compute(made)
                derived[parameter.name] = self.derived[where] = found
                self.mark(parameter, where)
        except Exception as error:
            return self.fail(node, path, f"{record.target.__qualname__} rejects these values: {error}")
        if is_plain(dict(record.params)):
            return with_fields(made, derived)
        holds_secrets = getattr(record.target, "holds_secrets", None)
        if holds_secrets is None:
            return dataclasses.replace(record, derived=derived)
        if not holds_secrets:
            return self.fail(node, path, "this section cannot hold a secret")
        return with_fields(record.target(**record.params), derived)

    def default(self, parameter: Parameter, path: Path) -> None:
        """Record the default of an omitted value; for a section, the defaults of its fields."""
        self.mark(parameter, path)
        if is_record(type(parameter.default)):
            for name, inner in signature_of(type(parameter.default)).parameters.items():
                value = getattr(parameter.default, name)
                self.default(dataclasses.replace(inner, default=value), (*path, name))
        else:
            known = parameter.default is not INHERITED
            self.defaults |= {path: parameter.default} if known else {}

    def mark(self, parameter: Parameter, path: Path) -> None:
        """Record the kind that a parameter's annotation declares."""
        for mark in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(mark, Kind):
                self.kinds[path] = mark


def _explain_refusal(node: Node, name: str, owner: str) -> str:
    """Return why an artifact may not set a parameter of a listed class; empty if it may."""
    if name in REFUSED.get(owner, ()) and not (isinstance(node, Leaf) and not node.value):
        return f"{name} of {owner} would write a file"
    found = [node]
    while found:
        each = found.pop()
        if isinstance(each, Map) and owner.startswith(NO_MAPPINGS) and not class_word(each, free=True):
            return f"{owner} would import the objects that a mapping describes"
        if isinstance(each, Leaf) and owner.startswith(LOCAL) and re.search("::|://", str(each.value)):
            return f"{owner} would read from {each.value}"
        found += each.items if isinstance(each, Seq) else ()
    return ""


@dataclasses.dataclass(frozen=True, slots=True)
class _Known:
    """The cached result of a check, with the facts collected."""

    subject: object
    against: object
    value: Any
    learned: Mapping[str, Mapping[Path, Any]]


@functools.lru_cache(maxsize=1024)
def list_derived(target: Any) -> list[tuple[Parameter, Derived]]:
    """Return the fields of a record that are computed from the others."""
    parameters = signature_of(target).parameters.values()
    return [(p, mark) for p in parameters if (mark := find_derived_mark(p)) is not None]


def find_derived_mark(parameter: Parameter) -> Derived | None:
    """Return the mark of a derived field; None for other fields."""
    marks = getattr(parameter.annotation, "__metadata__", ())
    return next((mark for mark in marks if isinstance(mark, Derived)), None)
