"""A checked component: a class path with checked parameters, not yet called."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from manyfit.config.tree.nodes import PYTHON
from manyfit.config.typed.roles import ANY, Role
from manyfit.config.typed.signatures import signature_of
from manyfit.core.errors import ComponentFailed, ManyfitError, Origin, UsageError
from manyfit.core.redaction import Secret, redact
from manyfit.core.tracebacks import user_frame


@dataclass(frozen=True)
class Component:
    """The checked form of `{class: path, **params}`. `build` calls it, or binds a function of tensors."""

    target: Any
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)
    role: Role = ANY
    at: str = ""
    origin: Origin = PYTHON
    supplied: tuple[str, ...] = ()
    deferred: bool = False
    kept: bool = False
    """Whether its section stores the component itself, which is built later."""
    written: str = ""
    """The class path as written in the config: a short name, or the full path."""
    beside: Mapping[str, Any] = field(default_factory=dict)
    """Keys in the same mapping that are read by manyfit and not parameters of the class."""
    derived: Mapping[str, Any] = field(default_factory=dict)
    """Fields of a record that were computed before its secrets are revealed."""

    def build(self, **supplied: Any) -> Any:
        """Call the class with its parameters; `supplied` holds those that exist only at run time."""
        known = {name: value for name, value in supplied.items() if name in self.supplied}
        params = {name: realise(value, supplied) for name, value in self.params.items()}
        if self.deferred:
            return functools.partial(self.target, **params) if params else self.target
        positional, keywords = self._arguments({**known, **params})
        try:
            return with_fields(self.target(*positional, **keywords), self.derived)
        except UsageError as error:
            raise UsageError(f"{self.origin}: {self.at}: {error}") from error
        except ManyfitError:
            raise
        except Exception as error:
            text = f"{self.origin}: {self.at}: building {self.path} failed: {type(error).__name__}: "
            if hasattr(error, "errors") and not is_plain(dict(self.params)):
                # pydantic quotes values, shortened, which could reveal part of a secret.
                hidden = [f"{'.'.join(map(str, item['loc']))}: {item['type']}" for item in error.errors()]
                raise ComponentFailed(redact(text + "; ".join(hidden))) from None
            failed = ComponentFailed(redact(f"{text}{error}\n  at {user_frame(error)}"))
            raise assign_blame(failed, error) from error

    def _arguments(self, given: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Return positional and keyword arguments; `*args` and the parameters before them are positional."""
        parameters = list(signature_of(self.target).parameters.values())
        variadic = next((i for i, p in enumerate(parameters) if p.variadic and p.name in given), -1)
        positional: list[Any] = []
        keywords = dict(given)
        for index, parameter in enumerate(parameters):
            if parameter.name in keywords and (index <= variadic or parameter.positional_only):
                value = keywords.pop(parameter.name)
                positional += value if parameter.variadic else [value]
        return positional, keywords


def assign_blame(failed: ComponentFailed, error: Exception) -> ComponentFailed:
    """Set the exit code of bad input if an invalid value or a missing file caused the failure."""
    if isinstance(error, ValueError | FileNotFoundError | NotADirectoryError | IsADirectoryError):
        failed.exit_code = UsageError.exit_code
    return failed


def realise(value: Any, supplied: Mapping[str, Any]) -> Any:
    """Build the components in a value and reveal its secrets."""
    if isinstance(value, Component):
        return value.build(**supplied)
    if isinstance(value, Secret):
        return value.reveal()
    if isinstance(value, list):
        return [realise(item, supplied) for item in value]
    if type(value) is tuple:
        return tuple(realise(item, supplied) for item in value)
    if isinstance(value, dict):
        return {key: realise(item, supplied) for key, item in value.items()}
    return value


def with_fields(record: Any, values: Mapping[str, Any]) -> Any:
    """Return a copy of a dataclass or pydantic model with other values in some fields."""
    if not values:
        return record
    return record.model_copy(update=values) if hasattr(record, "model_copy") else replace(record, **values)


def is_plain(value: Any) -> bool:
    """Return whether a value holds neither components to build nor secrets to reveal."""
    if isinstance(value, Component):
        return value.kept
    if isinstance(value, Secret):
        return False
    if isinstance(value, dict):
        return all(is_plain(item) for item in value.values())
    return all(is_plain(item) for item in value) if isinstance(value, list | tuple | set) else True
