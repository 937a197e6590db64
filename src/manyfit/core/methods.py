"""Methods that users write: whether they are there, and whether they have the expected parameters."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any, Final

from manyfit.core.errors import UsageError
from manyfit.core.names import nearest

OTHER_NAMES: Final = {"val_test": "valtest"}
"""Names of methods in older code."""


def has_method(spec: Any, name: str) -> bool:
    """Return whether an object has a method of its own, and not that of a base class of manyfit."""
    owner = next((cls for cls in type(spec).__mro__ if name in vars(cls)), object)
    return owner is not object and not owner.__module__.startswith("manyfit.")


def find_method(spec: Any, name: str) -> Any:
    """Return a method of a spec, which may have another name in older code."""
    for other, wanted in OTHER_NAMES.items():
        if wanted == name and not has_method(spec, name) and hasattr(spec, other):
            return getattr(spec, other)
    return getattr(spec, name, None)


def check_methods(spec: Any, expected: Mapping[str, Sequence[str]], needed: Sequence[str]) -> None:
    """Raise an error for a method that is missing or has other parameters than manyfit passes."""
    name = type(spec).__name__
    own = {
        key for cls in type(spec).__mro__ if not cls.__module__.startswith("manyfit.") for key in vars(cls)
    }
    for method in needed:
        if method not in own:
            others = [each for each in own if not each.startswith("_") and each not in expected]
            hint = f"; did you mean {best!r}?" if (best := nearest(method, others)) else ""
            raise UsageError(f"{name} needs a method {show_signature(method, expected[method])}{hint}")
    for method, parameters in expected.items():
        function = find_method(spec, method)
        if function is None:
            continue
        try:
            inspect.signature(function).bind(*parameters)
        except TypeError as error:
            found = f"{name}.{function.__name__}{inspect.signature(function)}"
            raise UsageError(
                f"{found} does not fit ({error}); expected: {show_signature(method, parameters)}"
            ) from None


def show_signature(method: str, parameters: Sequence[str]) -> str:
    """Return a method with its parameters, as one writes it."""
    return f"{method}({', '.join(('self', *parameters))})"
