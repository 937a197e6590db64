"""The results that a check collects: problems with their locations, and facts about valid values."""

from __future__ import annotations

from pathlib import Path as FilePath
from typing import Any, Final

from manyfit.config.tree.nodes import Leaf, Map, Node, Path, Unresolved, child, join_path, leaves, plain
from manyfit.config.typed.kinds import Kind
from manyfit.core.errors import Origin, Problem
from manyfit.core.names import show_value

INVALID: Final = object()
WRONG_TYPE: Final = "wrong type"


class Findings:
    """The problems of one tree, and its kinds, classes, defaults and derived values."""

    def __init__(self, root: Node, project: FilePath, source: FilePath | None) -> None:
        self.root = root
        self.project = project
        self.source = source
        self.problems: list[Problem] = []
        self.kinds: dict[Path, Kind] = {}
        self.classes: dict[Path, str] = {}
        self.defaults: dict[Path, Any] = {}
        self.derived: dict[Path, Any] = {}
        self.kind = Kind.IDENTITY

    def locate(self, path: Path) -> Origin:
        """Return the origin of the last existing key of a path."""
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
        """Record a problem with a value and return INVALID; an unresolved reference is not reported twice."""
        if any(isinstance(leaf, Leaf) and isinstance(leaf.value, Unresolved) for _, leaf in leaves(node)):
            return INVALID
        got = received or (show_value(plain(node)) if expected else "")
        origin = node.origin if isinstance(node, Leaf) else self.locate(path)
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
        self.problems.append(Problem(join_path(path), origin, message, expected, received, suggestion))
