"""The feeders of a variant, and references to shipped records in them."""

from __future__ import annotations

import glob
from collections.abc import Callable
from pathlib import Path as FilePath
from typing import Final

from manyfit.config.dialects.variant_files import SHIPPED
from manyfit.config.tree.nodes import Leaf, Map, Node, Seq
from manyfit.config.tree.project import below

SCHEME: Final = "manyfit:"
"""The prefix of shipped files in a config: manyfit:data/train-*."""
FEEDERS: Final = {"train_feeder": "train", "eval_feeder": "validation", "test_feeder": "test"}


def translate_feeder(node: Node) -> Node:
    """Return a feeder in which shipped files are absolute paths."""

    def found(text: str) -> str:
        return below(SHIPPED, text.removeprefix(SCHEME)) if text.startswith(SCHEME) else text

    made = _with_patterns(node, found)
    limit = items_of(made).get("max_examples")
    if isinstance(made, Map) and isinstance(limit, Leaf) and limit.value == -1:
        return made.without("max_examples")  # in a variant, -1 means all examples
    return made


def with_shipped(tree: Map, project: FilePath) -> Map:
    """Mark file patterns of a shipped variant that match only shipped records with the prefix `manyfit:`.

    The prefix is stored with the run, so that a later start reads the same files.
    """

    def found(text: str) -> str:
        is_here = not text or "://" in text or FilePath(text).is_absolute() or _matches(project, text)
        return text if is_here or not _matches(SHIPPED, text) else f"{SCHEME}{text}"

    train = tree.items.get("train")
    if not isinstance(train, Map):
        return tree
    for key in (key for key in FEEDERS if key in train.items):
        train = train.with_item(key, _with_patterns(train.items[key], found), train.key_origin(key))
    return tree.with_item("train", train, tree.key_origin("train"))


def _with_patterns(node: Node, change: Callable[[str], str]) -> Node:
    """Return a feeder with changed file patterns."""
    if not isinstance(node, Map) or "file_patterns" not in node.items:
        return node
    given = node.items["file_patterns"]

    def changed(leaf: Node) -> Node:
        is_text = isinstance(leaf, Leaf) and isinstance(leaf.value, str)
        return Leaf(change(str(leaf.value)), leaf.origin) if is_text else leaf  # type: ignore[union-attr]

    made = Seq(tuple(map(changed, given.items)), given.origin) if isinstance(given, Seq) else changed(given)
    return node.with_item("file_patterns", made, node.key_origin("file_patterns"))


def _matches(folder: FilePath, pattern: str) -> bool:
    return next(glob.iglob(pattern, root_dir=folder), None) is not None  # noqa: PTH207 - a pattern, not a path


def items_of(node: Node | None) -> dict[str, Node]:
    """Return the items of a mapping; empty for other nodes."""
    return dict(node.items) if isinstance(node, Map) else {}
