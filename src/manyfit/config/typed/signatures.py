"""The parameters of a callable that a config may set. The signature is the schema."""

from __future__ import annotations

import builtins
import collections.abc
import dataclasses
import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from manyfit.config.typed.keyword_reads import find_reads
from manyfit.config.typed.roles import MODULE, qualify

REQUIRED: Final = inspect.Parameter.empty
INHERITED: Final = object()
"""The default of a parameter that a base class accepts through `**kwargs`: unknown, never required."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a callable."""

    name: str
    annotation: Any = Any
    default: Any = REQUIRED
    variadic: bool = False
    positional_only: bool = False

    @property
    def required(self) -> bool:
        """Whether a config must set it."""
        return self.default is REQUIRED and not self.variadic


@dataclass(frozen=True, slots=True)
class Signature:
    """All parameters of a callable; an open one accepts further names."""

    parameters: Mapping[str, Parameter]
    open: bool = False


def signature_of(target: Any) -> Signature:
    """Return the parameters of a class or function; one without a readable signature is open."""
    return _signature_of(target)


@functools.lru_cache(maxsize=4096)
def _signature_of(target: Callable[..., Any]) -> Signature:
    name = qualify(target)
    if name == "torch.nn.modules.linear.Identity":
        return Signature({}, open=True)
    fields = getattr(target, "model_fields", None)
    if inspect.isclass(target) and isinstance(fields, dict):
        return _of_model(target, fields)
    if inspect.isclass(target):
        return (
            _with_factories(target, _of_class(target))
            if not hasattr(target, "_fields")
            else _of_tuple(target)
        )
    own, keywords = _of_function(target, skip_first=False)
    return Signature(own, open=keywords)


def optional_parameters(target: Callable[..., Any]) -> Signature:
    """Return the parameters of a function, all optional: its caller supplies the missing ones."""
    found = signature_of(target)
    parameters = {
        name: dataclasses.replace(p, default=INHERITED) if p.required else p
        for name, p in found.parameters.items()
    }
    return Signature(parameters, found.open)


def _of_class(target: type) -> Signature:
    parameters: dict[str, Parameter] = {}
    followed = False
    for base in target.__mro__:
        if base is object or qualify(base) == MODULE:
            return Signature(parameters)
        init = base.__dict__.get("__init__")
        if init is None:
            if base is target and base.__dict__.get("__new__") is not None:
                init = (
                    base.__dict__["__new__"].__func__
                    if isinstance(base.__dict__["__new__"], staticmethod)
                    else None
                )
            if init is None:
                continue
        own, keywords = _of_function(init, skip_first=True)
        for name, parameter in own.items():
            if followed and parameter.required:
                parameter = Parameter(name, parameter.annotation, INHERITED)
            if not (followed and parameter.variadic):
                parameters.setdefault(name, parameter)
        if not keywords:
            return Signature(parameters)
        for name, default in find_reads(init).items():
            parameters.setdefault(name, Parameter(name, Any, INHERITED if default is ... else default))
        followed = True
        parameters = {name: p for name, p in parameters.items() if not p.variadic}
    return Signature(parameters, open=True)


def _of_tuple(target: Any) -> Signature:
    """Return the fields of a named tuple as parameters."""
    hints, defaults = type_hints(target), getattr(target, "_field_defaults", {})
    return Signature(
        {name: Parameter(name, hints.get(name, Any), defaults.get(name, REQUIRED)) for name in target._fields}
    )


def _with_factories(target: Any, found: Signature) -> Signature:
    """Replace the placeholder of a dataclass's default_factory by the value that it returns."""
    if not dataclasses.is_dataclass(target):
        return found
    parameters = dict(found.parameters)
    for field in dataclasses.fields(target):
        if field.name in parameters and field.default_factory is not dataclasses.MISSING:
            parameters[field.name] = dataclasses.replace(
                parameters[field.name], default=_call_factory(field.default_factory)
            )
    return Signature(parameters, found.open)


def _call_factory(factory: Callable[[], Any]) -> Any:
    try:
        return factory()
    except Exception:  # user code; it fails again, with a message, when the object is built
        return INHERITED


def _of_function(function: Any, skip_first: bool) -> tuple[dict[str, Parameter], bool]:
    """Return the parameters, and whether `**kwargs` accepts more."""
    function = _overload(function)
    try:
        found = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):
        return {}, True
    hints = type_hints(function)
    parameters: dict[str, Parameter] = {}
    keywords = False
    for parameter in found[1:] if skip_first else found:
        if parameter.kind is parameter.VAR_KEYWORD:
            keywords = True
            continue
        variadic = parameter.kind is parameter.VAR_POSITIONAL
        annotation = hints.get(parameter.name, Any)
        parameters[parameter.name] = Parameter(
            parameter.name,
            types.GenericAlias(list, (annotation,)) if variadic else annotation,
            parameter.default,
            variadic,
            parameter.kind is parameter.POSITIONAL_ONLY,
        )
    return parameters, keywords


def _overload(function: Any) -> Any:
    """Return an overload with named parameters for `(*args, **kwargs)`, if any (torch's LSTM, Sequential)."""
    try:
        kinds = {p.kind for p in list(inspect.signature(function).parameters.values())[1:]}
    except (ValueError, TypeError):
        return function
    if kinds and kinds <= {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD}:
        for overload in typing.get_overloads(function):
            if not any(p.kind is p.VAR_KEYWORD for p in inspect.signature(overload).parameters.values()):
                return overload
    return function


def _of_model(model: Any, fields: Mapping[str, Any]) -> Signature:
    """Return the fields of a pydantic model as parameters."""
    parameters = {}
    for name, field in fields.items():
        annotation = (
            typing.Annotated[(field.annotation, *field.metadata)] if field.metadata else field.annotation
        )
        default = REQUIRED if field.is_required() else field.get_default(call_default_factory=False)
        if field.default_factory is not None:
            default = INHERITED
        parameters[name] = Parameter(name, annotation, default)
    return Signature(parameters, open=model.model_config.get("extra") == "allow")


def type_hints(function: Any) -> dict[str, Any]:
    """Evaluate annotations one by one; one that cannot be evaluated accepts any value."""
    try:
        return typing.get_type_hints(function, include_extras=True)
    except Exception:
        # One by one: a name imported only for type checkers must not invalidate the other annotations.
        plain = inspect.unwrap(function)
        names = {
            **vars(typing),
            **vars(collections.abc),
            **vars(builtins),
            **getattr(plain, "__globals__", {}),
        }
        found = {}
        for name, note in getattr(plain, "__annotations__", {}).items():
            try:
                found[name] = eval(note, names) if isinstance(note, str) else note
            except Exception:
                found[name] = Any
        return found
