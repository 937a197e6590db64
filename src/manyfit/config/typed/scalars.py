"""Checks of single values: numbers, text, enums, dtypes, secrets, and types that pydantic validates."""

from __future__ import annotations

import functools
import json
import types
import typing
from collections.abc import Sequence
from enum import Enum
from typing import Any

from manyfit.config.tree.nodes import Leaf, Node, Path, plain
from manyfit.config.typed import torch_facts
from manyfit.config.typed.findings import INVALID, WRONG_TYPE, Findings
from manyfit.config.typed.kinds import Kind
from manyfit.config.typed.wording import PATTERNS, expectation
from manyfit.core.names import listing, nearest


class Scalars(Findings):
    """Checks of single values against their annotations."""

    def scalar(self, node: Node, annotation: Any, path: Path) -> Any:
        """Check null, booleans, integers, floats and text; an int is accepted as a float."""
        wanted = type(None) if annotation is None else annotation
        value = node.value if isinstance(node, Leaf) else INVALID
        if type(value) is wanted:
            return value
        if wanted is float and type(value) is int:
            return (
                float(value)
                if abs(value) < 1 << 1023
                else self.fail(node, path, "this number is too large for a float")
            )
        return self.fail(node, path, WRONG_TYPE, expectation(annotation))

    def literal(self, node: Node, options: Sequence[Any], path: Path) -> Any:
        """Check that a value is one of the options of a `Literal`."""
        value = node.value if isinstance(node, Leaf) else INVALID
        for option in options:
            if type(option) is type(value) and option == value:
                return option
        names = [str(option) for option in options]
        return self.fail(
            node,
            path,
            "not one of the allowed values",
            f"one of {listing(map(repr, options))}",
            suggestion=nearest(str(value), names) if isinstance(value, str) else "",
        )

    def enum(self, node: Node, wanted: type[Enum], path: Path) -> Any:
        """Return the member of an enum, given by its name or its value."""
        value = node.value if isinstance(node, Leaf) else INVALID
        if isinstance(value, str) and value in wanted.__members__:
            return wanted[value]
        for member in wanted:
            if type(member.value) is type(value) and member.value == value:
                return member
        return self.fail(
            node,
            path,
            "not one of the allowed values",
            f"one of {listing(wanted.__members__)}",
            suggestion=nearest(str(value), wanted.__members__),
        )

    def dtype(self, node: Node, path: Path) -> Any:
        """Return a torch dtype, given as text such as `torch.float64`."""
        text = self.scalar(node, str, path)
        if text is INVALID:
            return INVALID
        known = torch_facts.dtypes()
        name = text.removeprefix("torch.")
        if name in known:
            return known[name]
        return self.fail(
            node, path, "not a dtype", "a dtype such as torch.float32", suggestion=nearest(name, known)
        )

    def secret(self, node: Leaf, annotation: Any, path: Path) -> Any:
        """Check that a secret is in a text field that is neither identity nor budget."""
        if self.kind is not Kind.NEUTRAL:
            return self.fail(
                node,
                path,
                "a secret cannot be part of a run's identity or budget",
                "a field that is neither, annotated with Annotated[str, Kind.NEUTRAL]",
            )
        options = (
            typing.get_args(annotation)
            if typing.get_origin(annotation) in (typing.Union, types.UnionType)
            else (annotation,)
        )
        if not any(option in (str, Any, object) for option in options):
            return self.fail(node, path, "a secret must be text", expectation(annotation), "a secret")
        return node.value

    def pydantic(self, node: Node, annotation: Any, path: Path, typed: Any = INVALID) -> Any:
        """Validate a typed value with pydantic, or parse one, as strictly as JSON."""
        from pydantic import ValidationError

        adapter = adapter_of(annotation)
        if adapter is None:
            return typed
        try:
            if typed is not INVALID:
                return adapter.validate_python(typed, strict=True)
            return adapter.validate_json(json.dumps(plain(node)), strict=True)
        except ValidationError as error:
            for item in error.errors(include_url=False):
                pattern = item.get("ctx", {}).get("pattern", "")
                wanted = PATTERNS.get(pattern) or item["msg"].removeprefix("Input should be ")
                self.fail(node, (*path, *item["loc"]), "invalid value", wanted)
            return INVALID


@functools.lru_cache(maxsize=1024)
def _get_adapter(annotation: Any) -> Any:
    from pydantic import PydanticUserError, TypeAdapter

    try:
        return TypeAdapter(annotation)
    except PydanticUserError:
        return None


def adapter_of(annotation: Any) -> Any:
    """Return pydantic's adapter for an annotation; None for a class that it cannot parse from JSON."""
    try:
        return _get_adapter(annotation)
    except TypeError:  # an unhashable annotation, such as a Literal of lists
        return _get_adapter.__wrapped__(annotation)
