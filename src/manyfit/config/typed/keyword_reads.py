"""Parameters that a function reads from its `**kwargs`: `kwargs.pop("name", default)` and the like."""

from __future__ import annotations

import ast
import functools
import inspect
import textwrap
from typing import Any, Final

READERS: Final = ("pop", "get", "setdefault")


@functools.lru_cache(maxsize=1024)
def find_reads(function: Any) -> dict[str, Any]:
    """Return the names that a function reads from its `**kwargs`, with their defaults; `...` without one.

    >>> def make(**kwargs):
    ...     return kwargs.pop("width", 8)
    >>> find_reads(make)
    {'width': 8}
    """
    try:
        parameters = inspect.signature(function).parameters.values()
        taken = next((p.name for p in parameters if p.kind is p.VAR_KEYWORD), "")
        tree = ast.parse(textwrap.dedent(inspect.getsource(function))) if taken else ast.parse("")
    except (OSError, TypeError, ValueError, SyntaxError):
        return {}
    found: dict[str, Any] = {}
    for node in ast.walk(tree):
        key: ast.expr | None = None
        default: Any = ...
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args:
            if _is_name(node.func.value, taken) and node.func.attr in READERS:
                key = node.args[0]
                given = node.args[1] if len(node.args) > 1 else None
                default = given.value if isinstance(given, ast.Constant) else (None if given is None else ...)
                default = ... if given is None and node.func.attr == "pop" else default
        elif isinstance(node, ast.Subscript) and _is_name(node.value, taken):
            key = node.slice
        if isinstance(key, ast.Constant) and isinstance(key.value, str):
            found.setdefault(key.value, default)
    return found


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
