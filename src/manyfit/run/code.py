"""The user's own code, as far as a run has imported it: a hash of what it says, comments aside."""

from __future__ import annotations

import ast
import functools
import hashlib
import os
import sys
from pathlib import Path
from typing import Any

DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def imported(source: Path) -> dict[str, str]:
    """Every module that was imported from a folder, with the hash of its syntax tree."""
    root = _root(source)
    state = (root, len(sys.modules), next(reversed(sys.modules), ""))
    if _last.get("state") != state:
        # There are thousands of modules, and a study asks for every trial.
        _last["state"], _last["files"] = state, _files(root)
    return {name: digest(file) for name, file in _last["files"].items()}


_last: dict[str, Any] = {}


@functools.lru_cache(maxsize=64)
def _root(source: Path) -> str:
    return f"{source.resolve()}{os.sep}"


def _files(root: str) -> dict[str, Path]:
    found = {}
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and file.endswith(".py") and file.startswith(root):
            found[name] = Path(file)
    return found


def digest(file: Path) -> str:
    """The hash of a file's syntax tree: comments, docstrings and blank lines do not count."""
    try:
        status = file.stat()
    except OSError as error:
        return f"unreadable: {type(error).__name__}"
    return _digest(file, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=4096)
def _digest(file: Path, mtime: int, size: int) -> str:
    """Parsing is slow, and a study asks for every trial."""
    try:
        parsed = ast.parse(file.read_bytes())
        for node in ast.walk(parsed):
            if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
                node.body = node.body[1:]
        tree = ast.dump(parsed)
    except (OSError, SyntaxError, ValueError) as error:
        tree = f"unreadable: {type(error).__name__}"
    return hashlib.sha256(tree.encode()).hexdigest()
