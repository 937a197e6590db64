"""Source files of modules: hashes that ignore comments, and imports."""

from __future__ import annotations

import ast
import functools
import hashlib
from pathlib import Path
from typing import Any

DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def hash_source(file: Path) -> str:
    """Return the hash of a file's syntax tree; comments, docstrings and blank lines are ignored."""
    try:
        status = file.stat()
    except OSError as error:
        return f"unreadable: {type(error).__name__}"
    return _digest(file, status.st_mtime_ns, status.st_size)


@functools.lru_cache(maxsize=4096)
def _digest(file: Path, mtime: int, size: int) -> str:
    """Return the hash, cached: parsing is slow, and a study asks for every trial."""
    try:
        tree = dump_undocumented(file.read_bytes())
    except (OSError, SyntaxError, ValueError) as error:
        tree = f"unreadable: {type(error).__name__}"
    return hashlib.sha256(tree.encode()).hexdigest()


def dump_undocumented(source: str | bytes) -> str:
    """Return the syntax tree of some code, without docstrings."""
    parsed = ast.parse(source)
    for node in ast.walk(parsed):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            node.body = node.body[1:]
    return dump_tree(parsed)


def dump_tree(node: Any) -> str:
    """Write a syntax tree as `ast.dump` of Python 3.11 does, on every version of Python.

    Later versions have further fields or omit empty ones, which must not change the hash of a run's code.
    """
    if isinstance(node, list):
        return f"[{', '.join(map(dump_tree, node))}]"
    if not isinstance(node, ast.AST):
        return repr(node)
    fields = []
    for name in node._fields:
        value = getattr(node, name, None)
        if (value is None and getattr(type(node), name, ...) is None) or (
            name == "type_params" and not value
        ):
            continue
        fields.append(f"{name}={dump_tree(value)}")
    return f"{type(node).__name__}({', '.join(fields)})"


def imports_of(name: str, file: Path) -> list[str]:
    """Return the imports of a module, under every name that they may refer to."""
    try:
        status = file.stat()
        return _imports(name, file, status.st_mtime_ns, status.st_size)
    except (OSError, SyntaxError, ValueError):
        return []


@functools.lru_cache(maxsize=4096)
def _imports(name: str, file: Path, mtime: int, size: int) -> list[str]:
    package = name if file.name == "__init__.py" else name.rpartition(".")[0]
    found = []
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        else:
            continue
        for each in names:
            parts = each.split(".")
            found += [".".join(parts[:n]) for n in range(1, len(parts) + 1)]
    return found
