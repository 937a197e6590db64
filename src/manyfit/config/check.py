"""Tree × annotations → typed values, and every problem on the way.

The checker is as strict as JSON: an int fits a float, a list fits a tuple, text fits an enum, and nothing
else is converted. It descends through the structure itself, because components may stand anywhere in it;
single values of other types (dates, URLs, constrained numbers) are pydantic's business.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import inspect
import json
import math
import sys
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from pathlib import Path as FilePath
from typing import Any, Final, Literal

from manyfit.config.component import Component, is_plain
from manyfit.config.kinds import Derived, Kind
from manyfit.config.resolve import ResolveError, canonical, resolve
from manyfit.config.roles import ANY, BY_BASE, Role, Trust, describe, qualified, refusal, supplied_to
from manyfit.config.signature import INHERITED, REQUIRED, Parameter, Signature, optional, signature_of
from manyfit.config.tree import Leaf, Map, Node, Path, Seq, Unresolved, child, dotted, plain
from manyfit.core.errors import Origin, Problem
from manyfit.core.names import listing, nearest, show
from manyfit.core.secrets import Secret

INVALID: Final = object()
WRONG_TYPE: Final = "wrong type"
CLASS_KEYS: Final = ("class", "_target_", "type")
CALLABLE: Final = Role("function")

_SEQUENCES: Final = {
    list,
    collections.abc.Sequence,
    collections.abc.Iterable,
    collections.abc.Collection,
    collections.abc.MutableSequence,
}
_SETS: Final = {set, frozenset, collections.abc.Set}
_MAPPINGS: Final = {dict, collections.abc.Mapping, collections.abc.MutableMapping, collections.OrderedDict}


class Checker:
    """Checks one tree. What it learns on the way is collected beside the problems."""

    def __init__(
        self, root: Node, project: FilePath, source: FilePath | None, frozen: Mapping[str, Any]
    ) -> None:
        self.root = root
        self.project = project
        self.source = source
        self.frozen = frozen
        self.problems: list[Problem] = []
        self.kinds: dict[Path, Kind] = {}
        self.classes: dict[Path, str] = {}
        self.defaults: dict[Path, Any] = {}
        self.derived: dict[Path, Any] = {}
        self.kind = Kind.IDENTITY

    # -- one value --------------------------------------------------------------------------------

    def value(self, node: Node, annotation: Any, path: Path) -> Any:
        """Check a node against an annotation and return the typed value, or INVALID."""
        if isinstance(node, Leaf) and isinstance(node.value, Unresolved):
            return INVALID
        if typing.get_origin(annotation) is typing.Annotated:
            return self.annotated(node, annotation, path)
        if isinstance(node, Leaf) and isinstance(node.value, Secret):
            return self.secret(node, annotation, path)
        while isinstance(annotation, typing.NewType):
            annotation = annotation.__supertype__
        if isinstance(annotation, typing.TypeVar):
            annotation = annotation.__bound__ or Any
        origin = typing.get_origin(annotation) or annotation
        if (
            annotation is Any
            or annotation is object
            or isinstance(annotation, str | typing.ForwardRef | typing.ParamSpec)
        ):
            return self.anything(node, path)
        if origin in (typing.Union, types.UnionType):
            return self.union(node, typing.get_args(annotation), path)
        if origin is Literal:
            return self.literal(node, typing.get_args(annotation), path)
        if annotation in (None, type(None), bool, int, float, str):
            return self.scalar(node, annotation, path)
        if origin is tuple or (
            inspect.isclass(origin) and issubclass(origin, tuple) and not hasattr(origin, "_fields")
        ):
            return self.tuple(node, typing.get_args(annotation), path)
        if origin in _SEQUENCES or origin in _SETS:
            return self.sequence(node, origin, typing.get_args(annotation), path)
        if origin in _MAPPINGS:
            return self.mapping(node, typing.get_args(annotation), path)
        if origin in (collections.abc.Callable, collections.abc.Hashable):
            return self.component(node, CALLABLE, path)
        if origin is type:
            return self.class_itself(node, typing.get_args(annotation), path)
        return self.instance(node, origin, path) if inspect.isclass(origin) else self.anything(node, path)

    def annotated(self, node: Node, annotation: Any, path: Path) -> Any:
        """`Annotated`: marks for the kind, a role, or constraints that pydantic knows."""
        base, *marks = typing.get_args(annotation)
        before = self.kind
        role = None
        for mark in marks:
            if isinstance(mark, Kind):
                self.kind = mark
                self.kinds[path] = mark
            role = mark if isinstance(mark, Role) else role
        constraints = [mark for mark in marks if not isinstance(mark, Kind | Derived | Role | str)]
        if role is not None:
            optional = type(None) in typing.get_args(base) and isinstance(node, Leaf) and node.value is None
            value = None if optional else self.component(node, role, path, keep=True)
        else:
            value = self.value(node, base, path)
        self.kind = before
        if constraints and value not in (INVALID, None) and is_plain(value):
            value = self.pydantic(node, typing.Annotated[(base, *constraints)], path, value)
        return value

    def secret(self, node: Leaf, annotation: Any, path: Path) -> Any:
        """A secret fits text, in fields that are not part of the identity."""
        if self.kind is not Kind.NEUTRAL:
            return self.fail(
                node,
                path,
                "a secret cannot be part of a run's identity or budget",
                "a field that is neither: annotate it with Annotated[str, Kind.NEUTRAL]",
            )
        options = (
            typing.get_args(annotation)
            if typing.get_origin(annotation) in (typing.Union, types.UnionType)
            else (annotation,)
        )
        if not any(option in (str, Any, object) for option in options):
            return self.fail(node, path, "a secret is text", expectation(annotation), "a secret")
        return node.value

    def scalar(self, node: Node, annotation: Any, path: Path) -> Any:
        """null, true or false, whole numbers, numbers and text; an int fits a float."""
        wanted = type(None) if annotation is None else annotation
        value = node.value if isinstance(node, Leaf) else INVALID
        if type(value) is wanted:
            return value
        if wanted is float and type(value) is int:
            return (
                float(value)
                if abs(value) < 1 << 1023
                else self.fail(node, path, "a number too large for a float")
            )
        return self.fail(node, path, WRONG_TYPE, expectation(annotation))

    def literal(self, node: Node, options: Sequence[Any], path: Path) -> Any:
        """One of a few values."""
        value = node.value if isinstance(node, Leaf) else INVALID
        for option in options:
            if type(option) is type(value) and option == value:
                return option
        names = [str(option) for option in options]
        return self.fail(
            node,
            path,
            "not one of the possible values",
            f"one of {listing(map(repr, options))}",
            suggestion=nearest(str(value), names) if isinstance(value, str) else "",
        )

    def union(self, node: Node, options: Sequence[Any], path: Path) -> Any:
        """The first option that fits; when none does, the problems of the likeliest one."""
        if isinstance(node, Leaf) and type(node.value) in options:
            return node.value
        if isinstance(node, Leaf) and node.value is None and type(None) not in options:
            return self.fail(node, path, WRONG_TYPE, expectation_of_any(options))
        likely: list[Problem] = []
        for option in options:
            found, problems = self.attempt(node, option, path)
            if not problems:
                return found
            if any(p.path != dotted(path) or p.message != WRONG_TYPE for p in problems):
                likely = likely or problems
        if likely:
            self.problems += likely
            return INVALID
        return self.fail(node, path, WRONG_TYPE, expectation_of_any(options))

    def attempt(self, node: Node, annotation: Any, path: Path) -> tuple[Any, list[Problem]]:
        """Check against one option and take everything back if it does not fit."""
        saved = self.problems, dict(self.kinds), dict(self.classes), dict(self.defaults), dict(self.derived)
        self.problems = []
        value = self.value(node, annotation, path)
        problems = self.problems
        if problems:
            self.problems, self.kinds, self.classes, self.defaults, self.derived = saved
        else:
            self.problems = saved[0]
        return value, problems

    def tuple(self, node: Node, options: Sequence[Any], path: Path) -> Any:
        """A list fits a tuple, item by item."""
        if not isinstance(node, Seq):
            return self.fail(node, path, WRONG_TYPE, "a list")
        if not options or options[-1] is Ellipsis:
            options = [options[0] if options else Any] * len(node.items)
        if len(options) != len(node.items):
            return self.fail(
                node, path, "a list of the wrong length", f"{len(options)} items", f"{len(node.items)} items"
            )
        items = [
            self.value(item, option, (*path, i))
            for i, (item, option) in enumerate(zip(node.items, options, strict=True))
        ]
        return INVALID if INVALID in items else tuple(items)

    def sequence(self, node: Node, origin: Any, options: Sequence[Any], path: Path) -> Any:
        """A list, or a set written as one."""
        if not isinstance(node, Seq):
            return self.fail(node, path, WRONG_TYPE, expectation(origin[options[0]] if options else origin))
        items = [
            self.value(item, options[0] if options else Any, (*path, i)) for i, item in enumerate(node.items)
        ]
        if any(item is INVALID for item in items):
            return INVALID
        return (
            items if origin in _SEQUENCES else (set(items) if origin is not frozenset else frozenset(items))
        )

    def mapping(self, node: Node, options: Sequence[Any], path: Path) -> Any:
        """A mapping with free keys."""
        if not isinstance(node, Map):
            return self.fail(node, path, WRONG_TYPE, "a mapping")
        key_type, value_type = options or (str, Any)
        result = {}
        for key, item in node.items.items():
            where = Leaf(key if key_type in (str, Any) else _number(key), node.key_origin(key))
            typed = self.value(where, key_type, (*path, key))
            result[typed] = self.value(item, value_type, (*path, key))
        return INVALID if any(INVALID in pair for pair in result.items()) else result

    def class_itself(self, node: Node, options: Sequence[Any], path: Path) -> Any:
        """`type[Base]`: the class itself, named by its path."""
        if not (isinstance(node, Leaf) and isinstance(node.value, str)):
            return self.fail(node, path, WRONG_TYPE, "a class path")
        target = self.target(node.value, ANY, node, path)
        base = options[0] if options and inspect.isclass(options[0]) else object
        if target is not INVALID and not (inspect.isclass(target) and issubclass(target, base)):
            return self.fail(
                node, path, f"{describe(target)} does not fit", f"a subclass of {qualified(base)}"
            )
        return target

    def instance(self, node: Node, wanted: type, path: Path) -> Any:
        """A class: an enum, a path, a record, a component, or a single value that pydantic can read."""
        if issubclass(wanted, Enum):
            return self.enum(node, wanted, path)
        if issubclass(wanted, FilePath):
            text = self.scalar(node, str, path)
            return text if text is INVALID else wanted(self.project / text)
        if qualified(wanted) in ("torch.dtype", "torch.device"):
            return self.torch_value(node, wanted, path)
        role = BY_BASE.get(qualified(wanted), ANY)
        named = isinstance(node, Map) and any(key in node.items for key in ("class", "_target_"))
        if (is_record(wanted) or typing.is_typeddict(wanted)) and not named:
            return self.record(node, wanted, path)
        text = node.value if isinstance(node, Leaf) and isinstance(node.value, str) else ""
        if named or (
            self.is_component_class(wanted) and (isinstance(node, Map) or "." in text or text in role.short)
        ):
            return self.component(node, role, path, wanted)
        if self.is_component_class(wanted):
            return self.fail(node, path, WRONG_TYPE, expectation(wanted))
        return self.pydantic(node, wanted, path, plain(node))

    def is_component_class(self, wanted: type) -> bool:
        """Whether values of a class can only come from a component: pydantic cannot read one from JSON."""
        from pydantic import PydanticUserError, TypeAdapter

        try:
            TypeAdapter(wanted)
        except PydanticUserError:
            return True
        return False

    def enum(self, node: Node, wanted: type[Enum], path: Path) -> Any:
        """A member's name, or its value."""
        value = node.value if isinstance(node, Leaf) else INVALID
        if isinstance(value, str) and value in wanted.__members__:
            return wanted[value]
        for member in wanted:
            if type(member.value) is type(value) and member.value == value:
                return member
        return self.fail(
            node,
            path,
            "not one of the possible values",
            f"one of {listing(wanted.__members__)}",
            suggestion=nearest(str(value), wanted.__members__),
        )

    def torch_value(self, node: Node, wanted: type, path: Path) -> Any:
        """`torch.float64` and `cuda:1` are written as text."""
        text = self.scalar(node, str, path)
        if text is INVALID:
            return INVALID
        if wanted.__name__ == "device":
            return text
        torch = sys.modules["torch"]
        found = getattr(torch, text.removeprefix("torch."), None)
        if isinstance(found, wanted):
            return found
        names = [name for name, value in vars(torch).items() if isinstance(value, wanted)]
        return self.fail(
            node, path, "not a dtype", "a dtype such as torch.float32", suggestion=nearest(text, names)
        )

    def pydantic(self, node: Node, annotation: Any, path: Path, value: Any) -> Any:
        """Let pydantic read a single value as strictly as JSON."""
        from pydantic import TypeAdapter, ValidationError

        adapter: TypeAdapter[Any] = TypeAdapter(annotation)
        try:
            if isinstance(value, Sequence | Mapping) and not isinstance(value, str):
                return adapter.validate_python(value)
            return adapter.validate_json(json.dumps(value if _jsonable(value) else plain(node)), strict=True)
        except ValidationError as error:
            for item in error.errors(include_url=False):
                wanted = item["msg"].removeprefix("Input should be ")
                self.fail(node, (*path, *item["loc"]), "not a possible value", wanted)
            return INVALID

    def anything(self, node: Node, path: Path) -> Any:
        """A value without annotation: data as it is, components where `class:` says so."""
        if isinstance(node, Map):
            if any(key in node.items for key in ("class", "_target_")):
                return self.component(node, ANY, path)
            return {key: self.anything(value, (*path, key)) for key, value in node.items.items()}
        if isinstance(node, Seq):
            return [self.anything(value, (*path, i)) for i, value in enumerate(node.items)]
        if isinstance(node.value, Secret):
            return self.secret(node, Any, path)
        return INVALID if isinstance(node.value, Unresolved) else node.value

    # -- components and records -------------------------------------------------------------------

    def component(
        self, node: Node, role: Role, path: Path, wanted: type | None = None, keep: bool = False
    ) -> Any:
        """Check `{class: path, **params}`, or its short form, the path alone."""
        key = next((key for key in CLASS_KEYS if key in node.items), None) if isinstance(node, Map) else None
        named = node.items[key] if isinstance(node, Map) and key else node
        if isinstance(named, Leaf) and isinstance(named.value, Unresolved):
            return INVALID
        if not (isinstance(named, Leaf) and isinstance(named.value, str)):
            got = "a mapping without `class`" if isinstance(node, Map) and key is None else ""
            return self.fail(
                node, path, f"this is not a {role.name}", "{class: path, ...}" + _short(role), got
            )
        named_at = (*path, key) if key else path
        target = self.target(named.value, role, named, named_at)
        if target is INVALID:
            return INVALID
        reason = (
            refusal(target, role, self.trust(path))
            if role is not CALLABLE
            else ""
            if callable(target) and self.trust(path).covers(target)
            else f"{describe(target)} is not your own code"
        )
        if wanted is not None and role is ANY:
            reason = (
                ""
                if inspect.isclass(target) and issubclass(target, wanted)
                else f"{describe(target)} is of another class"
            )
        if reason:
            expected = (
                role.wanted if wanted is None or role is not ANY else f"a subclass of {qualified(wanted)}"
            )
            return self.fail(named, named_at, f"wrong role: {reason}", expected, repr(named.value))
        self.classes[path] = canonical(named.value, role)
        params = node.without(key) if isinstance(node, Map) and key else Map({}, node.origin)
        supplied = supplied_to(target, role)
        signature = (
            signature_of(target) if role is not CALLABLE or inspect.isclass(target) else optional(target)
        )
        given = self.parameters(params, signature, supplied, path, self.classes[path])
        if given is INVALID:
            return INVALID
        deferred = not inspect.isclass(target) and (bool(role.function_of) or role is CALLABLE)
        component = Component(
            target,
            self.classes[path],
            given,
            role,
            dotted(path),
            self.located(path),
            supplied,
            deferred,
            keep,
        )
        return self.finish(component, params, path) if is_record(target) and not keep else component

    def target(self, text: str, role: Role, node: Leaf, path: Path) -> Any:
        """Import what a class path names."""
        try:
            return resolve(text, role, self.source)
        except ResolveError as error:
            return self.fail(node, path, str(error), error.expected, repr(text), error.suggestion)

    def trust(self, path: Path) -> Trust:
        """Whose code may stand at `path`: the user's, torch's, and that of the component around it."""
        owners = {
            self.classes[path[:n]].partition(".")[0] for n in range(len(path)) if path[:n] in self.classes
        }
        standard = Trust().packages
        return Trust(self.source, standard | (owners - set(sys.stdlib_module_names)))

    def parameters(
        self, node: Map, signature: Signature, supplied: Sequence[str], path: Path, name: str
    ) -> Any:
        """Check every given parameter, and that none is missing or unknown."""
        before = len(self.problems)
        known = {key: p for key, p in signature.parameters.items() if key not in supplied}
        settable = [key for key, p in known.items() if _derived(p) is None]
        given: dict[str, Any] = {}
        for key, item in node.items.items():
            if key in known:
                given[key] = self.parameter(item, known[key], (*path, key), name)
            elif key in supplied and key in signature.parameters:
                self.problem(node.key_origin(key), (*path, key), f"{key!r} is supplied by manyfit; remove it")
            elif signature.open:
                given[key] = self.anything(item, (*path, key))
            else:
                self.unknown(node, key, settable, path, name)
        for key, parameter in known.items():
            if key in node.items:
                continue
            if parameter.required and key not in HORIZONS.get(name, ()):
                self.problem(
                    self.located(path),
                    (*path, key),
                    f"{name} needs the parameter {key!r}",
                    expectation(parameter.annotation),
                    "nothing",
                )
            elif _derived(parameter) is None and parameter.default not in (REQUIRED, INHERITED):
                self.default(parameter, (*path, key))
        return INVALID if len(self.problems) > before else given

    def parameter(self, node: Node, parameter: Parameter, path: Path, owner: str) -> Any:
        """Check one parameter; null fits where it is the default."""
        if _derived(parameter) is not None:
            return self.fail(node, path, "this value is derived from others; remove it")
        if isinstance(node, Leaf) and node.value is None and parameter.default is None:
            self.mark(parameter, path)
            return None
        if parameter.name == "dtype" and owner.startswith("torch.") and "torch" in sys.modules:
            return self.torch_value(node, sys.modules["torch"].dtype, path)
        return self.value(node, parameter.annotation, path)

    def unknown(self, node: Map, key: str, known: Iterable[str], path: Path, name: str) -> None:
        """An unknown name is an error, with the nearest valid one."""
        origin = node.key_origin(key)
        where = "" if origin.line else f" ({dotted(path) or 'the config'} is at {self.located(path)})"
        names = list(known)
        expected = f"one of {listing(names, 24)}" if names else "no parameters"
        self.problem(
            origin, (*path, key), f"unknown key for {name}{where}", expected, key, nearest(key, names)
        )

    def record(self, node: Node, wanted: type, path: Path) -> Any:
        """A dataclass, pydantic model or TypedDict, written as a mapping without `class`."""
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
        given = self.parameters(node, signature_of(wanted), (), path, dotted(path) or "a config")
        if given is INVALID:
            return INVALID
        return self.finish(
            Component(wanted, qualified(wanted), given, ANY, dotted(path), self.located(path)), node, path
        )

    def finish(self, record: Component, node: Node, path: Path) -> Any:
        """Make the record now, if it is data alone, and fill in its derived fields."""
        if not is_plain(dict(record.params)):
            return record
        try:
            made = record.target(**record.params)
            derived = {}
            for name, parameter in signature_of(record.target).parameters.items():
                if (mark := _derived(parameter)) is not None:
                    where = dotted((*path, name))
                    derived[name] = self.frozen[where] if where in self.frozen else mark.compute(made)
                    self.derived[(*path, name)] = derived[name]
                    self.mark(parameter, (*path, name))
        except Exception as error:
            return self.fail(node, path, f"{record.target.__qualname__} refuses these values: {error}")
        if not derived:
            return made
        return (
            made.model_copy(update=derived)
            if hasattr(made, "model_copy")
            else dataclasses.replace(made, **derived)
        )

    def default(self, parameter: Parameter, path: Path) -> None:
        """Remember a value that nobody gave; a section by its fields."""
        self.mark(parameter, path)
        if is_record(type(parameter.default)):
            for name, inner in signature_of(type(parameter.default)).parameters.items():
                value = getattr(parameter.default, name)
                self.default(dataclasses.replace(inner, default=value), (*path, name))
        else:
            self.defaults[path] = parameter.default

    # -- helpers ----------------------------------------------------------------------------------

    def mark(self, parameter: Parameter, path: Path) -> None:
        """Remember the kind that a parameter's annotation declares."""
        for mark in getattr(parameter.annotation, "__metadata__", ()):
            if isinstance(mark, Kind):
                self.kinds[path] = mark

    def located(self, path: Path) -> Origin:
        """Where the last key of a path was written."""
        node, origin = self.root, self.root.origin
        for key in path:
            if isinstance(node, Map) and str(key) in node.items:
                origin = node.key_origin(str(key))
            below = child(node, key)
            if below is None:
                break
            node = below
            origin = node.origin if not isinstance(node, Map) and isinstance(key, int) else origin
        return origin

    def fail(
        self,
        node: Node,
        path: Path,
        message: str,
        expected: str = "",
        received: str = "",
        suggestion: str = "",
    ) -> Any:
        """Record a problem with a value."""
        got = received or (show(plain(node)) if expected else "")
        origin = node.origin if isinstance(node, Leaf) else self.located(path)
        self.problem(origin, path, message, expected, got, suggestion)
        return INVALID

    def problem(
        self,
        origin: Origin,
        path: Path,
        message: str,
        expected: str = "",
        received: str = "",
        suggestion: str = "",
    ) -> None:
        """Record a problem."""
        self.problems.append(Problem(dotted(path), origin, message, expected, received, suggestion))


HORIZONS: Final = {
    "torch.optim.lr_scheduler.CosineAnnealingLR": ("T_max",),
    "torch.optim.lr_scheduler.OneCycleLR": ("total_steps",),
}
"""Parameters that say how long a schedule lasts; left out, they follow from `train.horizon`."""


def is_record(target: Any) -> bool:
    """Whether a class is a dataclass or a pydantic model: data, and nothing else."""
    return inspect.isclass(target) and (dataclasses.is_dataclass(target) or hasattr(target, "model_fields"))


def expectation(annotation: Any) -> str:
    """Describe an annotation in the words of a message."""
    names = {
        int: "a whole number",
        float: "a number",
        str: "text",
        bool: "true or false",
        type(None): "null",
        None: "null",
        Any: "any value",
    }
    if annotation in (Any, None) or (inspect.isclass(annotation) and annotation in names):
        return names[annotation]
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Annotated:
        role = next((mark for mark in annotation.__metadata__ if isinstance(mark, Role)), None)
        return role.wanted + _short(role) if role else expectation(args[0])
    if origin in (typing.Union, types.UnionType):
        return expectation_of_any(args)
    if origin is Literal:
        return f"one of {listing(map(repr, args))}"
    if origin is tuple or origin in _SEQUENCES or origin in _SETS:
        inner = [expectation(option) for option in args if option is not Ellipsis]
        return f"a list of {', '.join(inner)}" if inner else "a list"
    if origin in _MAPPINGS or annotation in _MAPPINGS:
        return "a mapping"
    if annotation in _SEQUENCES or annotation in _SETS or annotation is tuple:
        return "a list"
    if inspect.isclass(annotation):
        if issubclass(annotation, Enum):
            return f"one of {listing(annotation.__members__)}"
        return "a path" if issubclass(annotation, FilePath) else f"a {annotation.__qualname__}"
    return str(annotation).replace("typing.", "").replace("collections.abc.", "")


def expectation_of_any(options: Iterable[Any]) -> str:
    """Describe a choice of annotations."""
    return " or ".join(dict.fromkeys(expectation(option) for option in options))


def _short(role: Role) -> str:
    return f", or one of {listing(sorted(role.short))}" if role.short else ""


def _derived(parameter: Parameter) -> Derived | None:
    marks = getattr(parameter.annotation, "__metadata__", ())
    return next((mark for mark in marks if isinstance(mark, Derived)), None)


def _jsonable(value: Any) -> bool:
    return (
        isinstance(value, bool | int | str)
        or value is None
        or (isinstance(value, float) and math.isfinite(value))
    )


def _number(key: str) -> Any:
    try:
        return int(key)
    except ValueError:
        try:
            return float(key)
        except ValueError:
            return {"true": True, "false": False}.get(key, key)
