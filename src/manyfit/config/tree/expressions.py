"""Constraints of a search space: comparisons and arithmetic over the values of a point, and nothing else."""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator
from typing import Any, Final

_BINARY: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_COMPARE: Final[dict[type[ast.cmpop], Callable[[Any, Any], bool]]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda a, b: a in b,
    ast.NotIn: lambda a, b: a not in b,
}
_FUNCTIONS: Final[dict[str, Callable[..., Any]]] = {"abs": abs, "min": min, "max": max}
_WORDS: Final = {"true": True, "false": False, "null": None}
MAX_LENGTH: Final = 1000


class Expression:
    """A condition such as `model.hidden * model.layers <= 512 and train.optimizer.lr < 0.1`.

    >>> Expression("model.hidden <= 64")(lambda key: 32)
    True
    """

    def __init__(self, text: str) -> None:
        """Parse the condition. Raises ValueError if it is invalid."""
        self.text = text
        if len(text) > MAX_LENGTH:
            raise ValueError(f"longer than {MAX_LENGTH} characters")
        try:
            self._tree = ast.parse(text, mode="eval").body
        except (SyntaxError, RecursionError, MemoryError) as error:
            raise ValueError(f"cannot be parsed: {getattr(error, 'msg', error)}") from None
        for node in ast.walk(self._tree):
            _check(node)

    @property
    def keys(self) -> list[str]:
        """The config keys that it uses."""
        return list(dict.fromkeys(_keys(self._tree)))

    def __call__(self, lookup: Callable[[str], Any]) -> bool:
        """Return whether the condition holds for the values that `lookup` returns."""
        return bool(_value(self._tree, lookup))


_ALLOWED: Final = (
    ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.UAdd, ast.BinOp, ast.Compare, ast.Call,
    ast.Name, ast.Attribute, ast.Load, ast.Constant, ast.List, ast.Tuple, ast.operator, ast.cmpop,
)  # fmt: skip


def _check(node: ast.AST) -> None:
    known = isinstance(node, _ALLOWED)
    if isinstance(node, ast.operator):
        known = type(node) in _BINARY
    if isinstance(node, ast.cmpop):
        known = type(node) in _COMPARE
    if isinstance(node, ast.Constant):
        known = isinstance(node.value, bool | int | float | str) or node.value is None
    if isinstance(node, ast.Attribute):
        known = isinstance(node.value, ast.Name | ast.Attribute)
    if isinstance(node, ast.Call):
        known = isinstance(node.func, ast.Name) and node.func.id in _FUNCTIONS and not node.keywords
    if not known:
        raise ValueError(
            f"{ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__} is not allowed; "
            f"allowed are comparisons, arithmetic, and, or, not, in, {', '.join(_FUNCTIONS)}"
        )


def _join_names(node: ast.AST) -> str:
    return f"{_join_names(node.value)}.{node.attr}" if isinstance(node, ast.Attribute) else node.id  # type: ignore[attr-defined]


def _keys(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Attribute) or (isinstance(node, ast.Name) and node.id not in _WORDS):
        yield _join_names(node)
        return
    children = node.args if isinstance(node, ast.Call) else ast.iter_child_nodes(node)
    for inner in children:
        yield from _keys(inner)


def _value(node: ast.AST, lookup: Callable[[str], Any]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name) and node.id in _WORDS:
        return _WORDS[node.id]
    if isinstance(node, ast.Name | ast.Attribute):
        return lookup(_join_names(node))
    if isinstance(node, ast.List | ast.Tuple):
        return [_value(item, lookup) for item in node.elts]
    if isinstance(node, ast.BoolOp):
        every = (bool(_value(item, lookup)) for item in node.values)
        return all(every) if isinstance(node.op, ast.And) else any(every)
    if isinstance(node, ast.UnaryOp):
        value = _value(node.operand, lookup)
        if isinstance(node.op, ast.Not):
            return not value
        return -value if isinstance(node.op, ast.USub) else +value
    if isinstance(node, ast.BinOp):
        left, right = _value(node.left, lookup), _value(node.right, lookup)
        for value in (left, right):
            if not isinstance(value, int | float):
                raise TypeError(f"{value!r:.60} is not a number")
        return _BINARY[type(node.op)](left, right)
    if isinstance(node, ast.Call):
        assert isinstance(node.func, ast.Name)
        return _FUNCTIONS[node.func.id](*(_value(item, lookup) for item in node.args))
    assert isinstance(node, ast.Compare)
    left = _value(node.left, lookup)
    for operation, item in zip(node.ops, node.comparators, strict=True):
        right = _value(item, lookup)
        if not _COMPARE[type(operation)](left, right):
            return False
        left = right
    return True
