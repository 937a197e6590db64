"""Conditions on runs: `train.optimizer.lr<1e-3`, `state=finished`, `name~mlp`."""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from manyfit.config.tree.reader import parse_yaml
from manyfit.core.errors import ConfigError, UsageError

OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "<=": operator.le, ">=": operator.ge, "!=": operator.ne, "==": operator.eq,
    "<": operator.lt, ">": operator.gt, "=": operator.eq,
}  # fmt: skip
PATTERN: Final = re.compile(r"\s*([\w.\[\]-]+)\s*(<=|>=|!=|==|<|>|=|~)\s*(.*?)\s*")


@dataclass(frozen=True, slots=True)
class Condition:
    """A key, an operator and a value."""

    key: str
    sign: str
    value: Any
    text: str = ""
    """The value as written."""

    @staticmethod
    def parse(text: str) -> Condition:
        """Parse a condition.

        >>> Condition.parse("train.optimizer.lr<1e-3").value
        0.001
        """
        found = PATTERN.fullmatch(text)
        if found is None or not found[3]:
            raise UsageError(
                f"{text!r} is not a condition; write a key, one of < <= > >= = != ~ and a value, such as "
                "train.optimizer.lr<1e-3, state=finished or name~mlp"
            )
        if found[2] == "~":
            try:
                return Condition(found[1], "~", re.compile(found[3]))
            except re.error as error:
                raise UsageError(f"{text!r}: {error}") from None
        try:
            value: Any = getattr(parse_yaml(found[3], "--where"), "value", found[3])
        except ConfigError:
            value = found[3]
        return Condition(found[1], found[2], value, found[3])

    def holds(self, values: Mapping[str, Any]) -> bool:
        """Return whether a run satisfies it; a run without the key does not."""
        if self.key not in values:
            return False
        found = values[self.key]
        if self.sign == "~":
            return bool(self.value.search(str(found)))
        if self.sign in ("=", "==", "!="):
            return OPERATORS[self.sign](found, self.value)
        if isinstance(found, str):  # dates among them: 2026-11 comes before 2026-11-18
            return OPERATORS[self.sign](found, self.text)
        if isinstance(found, bool) or not isinstance(found, int | float):
            return False
        if isinstance(self.value, bool) or not isinstance(self.value, int | float):
            raise UsageError(f"{self.key} is a number, so it cannot be compared with {self.text!r}")
        return OPERATORS[self.sign](found, self.value)


def sort_key(value: Any) -> tuple[int, float, str]:
    """Return a key that sorts numbers before text, and missing values last."""
    if isinstance(value, int | float) and not math.isnan(value):
        return 0, float(value), ""
    return (1, 0.0, str(value)) if value is not None and not isinstance(value, float) else (2, 0.0, "")
