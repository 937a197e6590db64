"""Checks of arguments from Python code against the same annotations as in a config."""

from __future__ import annotations

import functools
import numbers
import typing
from collections.abc import Mapping
from typing import Any

from manyfit.core.errors import UsageError


def check_arguments(target: Any, given: Mapping[str, Any]) -> None:
    """Raise `UsageError` unless each argument fits its annotation, including constraints such as `Gt(0)`.

    >>> from annotated_types import Gt
    >>> def feed(batch_size: typing.Annotated[int, Gt(0)] | None = None) -> None: ...
    >>> check_arguments(feed, {"batch_size": 0})
    Traceback (most recent call last):
        ...
    manyfit.core.errors.UsageError: feed: batch_size must be greater than 0, not 0
    """
    from pydantic import ValidationError

    name = getattr(target, "__qualname__", str(target)).removesuffix(".__init__")
    for parameter, adapter in _adapters(target).items():
        if parameter not in given:
            continue
        value = given[parameter]
        try:
            adapter.validate_python(_plain(value), strict=True)
        except ValidationError as error:
            # In a union, None is never the intended member.
            wrong = [each for each in error.errors() if each["type"] != "none_required"] or error.errors()
            told = dict.fromkeys(each["msg"].replace("Input should be ", "") for each in wrong)
            raise UsageError(f"{name}: {parameter} must be {' or '.join(told)}, not {value!r:.80}") from None


def _plain(value: Any) -> Any:
    """Return NumPy integers as Python integers."""
    if type(value) is not bool and isinstance(value, numbers.Integral):
        return int(value)
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


@functools.lru_cache(maxsize=256)
def _adapters(target: Any) -> dict[str, Any]:
    from pydantic import ConfigDict, TypeAdapter

    hints = typing.get_type_hints(target, include_extras=True)
    loose = ConfigDict(arbitrary_types_allowed=True)
    return {name: TypeAdapter(hint, config=loose) for name, hint in hints.items() if name != "return"}
