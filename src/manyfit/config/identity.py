"""The identity of a config: canonical values, the fingerprint, and differences by kind."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from manyfit.config.dialects.table import EPOCHS
from manyfit.config.tree.nodes import Leaf, Map, Node, Path, Seq, class_word, join_path
from manyfit.config.typed.kinds import Kind
from manyfit.config.typed.moved_classes import first_path
from manyfit.core.redaction import Secret


@dataclass(frozen=True, slots=True)
class Difference:
    """One value that differs between two configs; `NOT_SET` if one does not have it."""

    path: str
    kind: Kind
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.path}: {_format(self.before)} → {_format(self.after)} ({self.kind})"


class _NotSet:
    def __repr__(self) -> str:
        return "not set"


NOT_SET = _NotSet()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The parts of a config that can be compared without imports: effective values and their kinds."""

    values: Mapping[str, Any]
    kinds: Mapping[str, Kind]
    fingerprint: str
    defaults: frozenset[str] = frozenset()
    """The keys of omitted values."""

    def kind(self, path: str) -> Kind:
        """Return the kind of a value: that of the nearest enclosing mark."""
        steps = path.split(".")
        for length in range(len(steps), 0, -1):
            found = self.kinds.get(".".join(steps[:length]))
            if found is not None:
                return found
        return Kind.IDENTITY


def epochs_in(values: Mapping[str, Any], default: Any) -> Any:
    """Return the number of epochs among the values of a config, in any layout."""
    return next((values[key] for key in EPOCHS if key in values), default)


def diff_snapshots(before: Snapshot, after: Snapshot) -> list[Difference]:
    """Return the differences in the order of the keys, each with its kind."""
    found = []
    for path in dict.fromkeys([*before.values, *after.values]):
        old, new = before.values.get(path, NOT_SET), after.values.get(path, NOT_SET)
        if old is NOT_SET or new is NOT_SET or hash_data(old) != hash_data(new):
            kind = after.kind(path) if path in after.values else before.kind(path)
            found.append(Difference(path, kind, old, new))
    return found


def normal(node: Node, classes: Mapping[Path, str], path: Path = ()) -> Any:
    """Return plain data in canonical form: `class`, not its synonyms, full paths, components in long form."""
    if path in classes:
        params = {}
        if isinstance(node, Map):
            word = class_word(node)
            params = {k: normal(v, classes, (*path, k)) for k, v in node.items.items() if k != word}
        return {"class": classes[path], **params}
    if isinstance(node, Map):
        return {key: normal(value, classes, (*path, key)) for key, value in node.items.items()}
    if isinstance(node, Seq):
        return [normal(value, classes, (*path, i)) for i, value in enumerate(node.items)]
    assert isinstance(node, Leaf)
    return str(node.value) if isinstance(node.value, Secret) else node.value


def identity(value: Any, kinds: Mapping[Path, Kind], path: Path = (), kind: Kind = Kind.IDENTITY) -> Any:
    """Return only the values that are part of the identity; mappings without any are dropped."""
    kind = kinds.get(path, kind)
    if isinstance(value, dict):
        kept = {key: identity(item, kinds, (*path, key), kind) for key, item in value.items()}
        kept = {key: item for key, item in kept.items() if item is not NOT_SET}
        return kept if kept or (kind is Kind.IDENTITY and not value) else NOT_SET
    if kind is not Kind.IDENTITY:
        return NOT_SET
    if isinstance(value, list):
        kept_items = [identity(item, kinds, (*path, i), kind) for i, item in enumerate(value)]
        return [{} if item is NOT_SET else item for item in kept_items]
    return value


def hash_data(value: Any) -> str:
    """Return a hash of plain data, independent of key order and the spelling of numbers."""
    text = json.dumps(
        number(value), sort_keys=True, ensure_ascii=True, allow_nan=False, separators=(",", ":")
    )
    return hashlib.sha256(text.encode("ascii")).hexdigest()


def number(value: Any) -> Any:
    """Return data with canonical numbers and class paths.

    1.0 becomes 1, a non-finite number becomes a mapping, and a moved class is named by its first path.
    """
    if isinstance(value, str):
        return first_path(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            return {"float": str(value)}
        return int(value) if value == int(value) else value
    if isinstance(value, dict):
        return {str(key): number(item) for key, item in value.items()}
    return [number(item) for item in value] if isinstance(value, list | tuple) else value


def flat(value: Any, path: Path = ()) -> dict[str, Any]:
    """Flatten mappings to dotted keys; lists stay whole."""
    if isinstance(value, dict) and value:
        return {k: v for key, item in value.items() for k, v in flat(item, (*path, key)).items()}
    return {join_path(path): value}


def _format(value: Any) -> str:
    return repr(value) if not isinstance(value, str) else value
