"""Merging files: `extend`, and the three keywords that change how a layer is merged.

- ``key: ${__del__}`` removes an inherited key,
- ``key: {${__extend__}: [...]}`` appends to an inherited list,
- ``${__inherit__}: path.to.mapping`` inside a mapping starts from a copy of another mapping.
"""

from __future__ import annotations

import os
from pathlib import Path as FilePath
from typing import Final

from manyfit.config.tree.nodes import Leaf, Map, Node, Path, Seq, find, join_path, size
from manyfit.config.tree.reader import MAX_DEPTH, MAX_NODES, read_file
from manyfit.core.errors import ConfigError, Origin, Problem
from manyfit.core.names import nearest

DELETE: Final = "${__del__}"
EXTEND: Final = "${__extend__}"
INHERIT: Final = "${__inherit__}"


def lay(base: Node | None, over: Node, problems: list[Problem], path: Path = ()) -> Node | None:
    """Merge `over` into `base`: mappings merge, lists and scalars replace. None means: delete the key."""
    if isinstance(over, Leaf) and over.value == DELETE:
        return None
    if not isinstance(over, Map):
        return over
    if EXTEND in over.items:
        return _append(base, over, problems, path)
    below = base if isinstance(base, Map) else Map({}, over.origin)
    items, keys = dict(below.items), dict(below.keys)
    for key, value in over.items.items():
        laid = lay(items.get(key), value, problems, (*path, key))
        if laid is None and key not in items:
            best = nearest(key, items)
            problems.append(
                Problem(
                    join_path((*path, key)),
                    over.key_origin(key),
                    "nothing to delete",
                    suggestion=best,
                )
            )
        if laid is None:
            items.pop(key, None)
        else:
            items[key], keys[key] = laid, over.key_origin(key)
    return Map(items, below.origin, keys)


def _append(base: Node | None, over: Map, problems: list[Problem], path: Path) -> Node:
    added = over.items[EXTEND]
    inherited = base if base is not None else Seq((), over.origin)
    if len(over.items) > 1 or not isinstance(added, Seq):
        problems.append(
            Problem(
                join_path(path),
                over.key_origin(EXTEND),
                f"{EXTEND} must be the only key of its mapping, with a list as its value",
            )
        )
        return over
    if not isinstance(inherited, Seq):
        problems.append(
            Problem(
                join_path(path),
                over.key_origin(EXTEND),
                f"{EXTEND} can only append to a list",
                "an inherited list",
                f"another type at {inherited.origin}",
            )
        )
        return inherited
    return Seq((*inherited.items, *added.items), over.origin)


class Reader:
    """Reader of a file and all files that it extends, each once. Problems are collected, not raised."""

    def __init__(self, problems: list[Problem]) -> None:
        self.problems = problems
        self.seen: set[FilePath] = set()
        self.files: list[FilePath] = []

    def read(self, file: FilePath) -> Map | None:
        """Return the file merged over the files it extends, or None if it cannot be read."""
        self.seen.add(file.resolve())
        try:
            node = read_file(file, self.display_file(file))
        except ConfigError as error:
            self.problems += error.problems
            return None
        self.files.append(file)
        return self.extend(node, file.parent)

    def extend(self, node: Node, folder: FilePath) -> Map | None:
        """Merge a tree over the files that it extends; their paths are relative to `folder`."""
        if not isinstance(node, Map):
            empty = isinstance(node, Leaf) and node.value is None
            self.problems.append(
                Problem(
                    "",
                    Origin(node.origin.file, node.origin.line or 1),
                    "this file is empty" if empty else "this is not a mapping",
                    "a mapping such as `seed: 7`",
                )
            )
            return None
        result: Node | None = None
        for parent in self.parents(node, folder):
            if parent.resolve() not in self.seen:
                below = self.read(parent)
                result = lay(result, below, self.problems) if below is not None else result
        laid = lay(result, node.without("extend"), self.problems)
        assert isinstance(laid, Map)
        return Map(laid.items, node.origin, laid.keys)

    def parents(self, node: Map, folder: FilePath) -> list[FilePath]:
        """Return the files that `extend` names, in order; a pattern expands to its sorted matches."""
        extend = node.items.get("extend")
        if extend is None:
            return []
        found: list[FilePath] = []
        for entry in extend.items if isinstance(extend, Seq) else (extend,):
            if not (isinstance(entry, Leaf) and isinstance(entry.value, str) and entry.value):
                self.problems.append(
                    Problem(
                        "extend",
                        entry.origin,
                        "not a file name",
                        "a path or pattern, relative to this file",
                    )
                )
                continue
            matches = self.matches(folder, entry.value)
            found += matches
            if not matches:
                self.problems.append(
                    Problem(
                        "extend",
                        entry.origin,
                        "no such file",
                        "a file relative to this one",
                        repr(entry.value),
                        self.similar(folder, entry.value),
                    )
                )
        return found

    @staticmethod
    def matches(folder: FilePath, text: str) -> list[FilePath]:
        """Expand one entry of `extend`."""
        target = FilePath(text)
        try:
            if not any(mark in text for mark in "*?["):
                return [folder / target] if (folder / target).is_file() else []
            base, pattern = (
                (FilePath(target.anchor), str(target.relative_to(target.anchor)))
                if target.is_absolute()
                else (folder, text)
            )
            return sorted(match for match in base.glob(pattern) if match.is_file())
        except (OSError, ValueError):
            return []

    @staticmethod
    def similar(folder: FilePath, text: str) -> str:
        """Return the existing file with the most similar name, or an empty string."""
        try:
            beside = (folder / text).parent
            names = [entry.name for entry in beside.iterdir()] if beside.is_dir() else []
        except (OSError, ValueError):
            return ""
        best = nearest(FilePath(text).name, names)
        return str(FilePath(text).with_name(best)) if best else ""

    def display_file(self, file: FilePath) -> str:
        """Return the name of a file in messages."""
        return display_path(file)


def display_path(file: FilePath) -> str:
    """Return a path relative to the working directory if the file is near it, else the absolute path."""
    full = file.resolve()
    near = os.path.relpath(full)
    return (
        near
        if not near.startswith(f"..{os.sep}..{os.sep}..") and FilePath.cwd() != FilePath("/")
        else str(full)
    )


def inherit(root: Map, problems: list[Problem]) -> Map:
    """Replace every `${__inherit__}` by the mapping that it names, after all layers are merged."""
    result = _Heirs(root, problems).expand(root, ())
    assert isinstance(result, Map)
    return result


class _Heirs:
    """Expansion of mappings that inherit from others, each once."""

    def __init__(self, root: Map, problems: list[Problem]) -> None:
        self.root = root
        self.problems = problems
        self.done: dict[Path, Node] = {}
        self.busy: list[Path] = []
        self.count = 0

    def expand(self, node: Node, path: Path) -> Node:
        if isinstance(node, Seq):
            found = tuple(self.expand(item, (*path, i)) for i, item in enumerate(node.items))
            same = all(new is old for new, old in zip(found, node.items, strict=True))
            return node if same else Seq(found, node.origin)
        if not isinstance(node, Map):
            return node
        items = {key: self.expand(value, (*path, key)) for key, value in node.items.items() if key != INHERIT}
        if len(items) == len(node.items) and all(items[key] is value for key, value in node.items.items()):
            return node  # not a copy: check results are cached by object identity
        own: Node = Map(items, node.origin, node.keys)
        if INHERIT in node.items:
            below = self.source(node.items[INHERIT], (*path, INHERIT))
            own = (lay(below, own, self.problems, path) or own) if below is not None else own
        return own

    def source(self, word: Node, path: Path) -> Node | None:
        """Return the mapping that one `${__inherit__}` names."""
        text = word.value if isinstance(word, Leaf) else None
        if not isinstance(text, str):
            return self.fail(path, word, f"{INHERIT} must name a mapping", "a path such as train.feeder")
        target: Path = tuple(text.split("."))
        found = find(self.root, target)
        if target in self.busy or len(self.busy) > MAX_DEPTH:
            chain = " → ".join(join_path(step) for step in (*self.busy[:8], target))
            return self.fail(path, word, f"circular inheritance between mappings: {chain}")
        if not isinstance(found, Map):
            parent = find(self.root, target[:-1])
            best = nearest(str(target[-1]), parent.items if isinstance(parent, Map) else self.root.items)
            suggestion = join_path((*target[:-1], best)) if best else ""
            return self.fail(path, word, "no such mapping to inherit from", "a mapping", suggestion)
        if target not in self.done:
            self.busy.append(target)
            self.done[target] = self.expand(found, target)
            self.busy.pop()
        self.count += size(self.done[target])
        if self.count > MAX_NODES:
            return self.fail(
                path, word, f"this config has more than {MAX_NODES:,} values after inheritance is expanded"
            )
        return self.done[target]

    def fail(
        self, path: Path, word: Node, message: str, expected: str = "", suggestion: str = ""
    ) -> Node | None:
        self.problems.append(Problem(join_path(path), word.origin, message, expected, suggestion=suggestion))
        return None
