"""Importing class paths: from the user's code, from installed packages, or by a built-in short name."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
import os
import pkgutil
import sys
import traceback
from pathlib import Path
from types import ModuleType
from typing import Any

from manyfit.config.typed.moved_classes import current_path
from manyfit.config.typed.roles import Role
from manyfit.core.installed import is_installed
from manyfit.core.names import listing, nearest

MAX_PARTS = 32

_activated: list[Path] = []
_added: list[str] = []
"""Entries of `sys.path` that were added here."""


class ResolveError(Exception):
    """A class path that cannot be imported."""

    def __init__(self, message: str, expected: str = "", suggestion: str = "") -> None:
        super().__init__(message)
        self.expected = expected
        self.suggestion = suggestion


def canonical(text: str, role: Role) -> str:
    """Return the full form of a class path; short names are expanded, colons become dots."""
    return current_path(role.short.get(text, text)).replace(":", ".")


def resolve(text: str, role: Role, source: Path | None) -> Any:
    """Import the object that a class path names. Nothing is called."""
    path = current_path(role.short.get(text, text))
    if "." not in path and ":" not in path:
        expected = f"a path such as models.{path}"
        expected += f", or one of {listing(sorted(role.short))}" if role.short else ""
        raise ResolveError(
            f"there is no built-in {role.name} named {text!r}", expected, nearest(text, role.short)
        )
    parts = path.replace(":", ".").split(".")
    if "__main__" in parts[1:]:
        raise ResolveError(f"{text!r} is a program, not a module: importing it would run it")
    if not all(part.isidentifier() for part in parts) or len(parts) > MAX_PARTS:
        raise ResolveError(f"{text!r} is not a class path", "names joined by dots, such as models.MLP")
    if source is not None:
        activate(source)
    known = _found.get((path, source))
    if known is not None and sys.modules.get(known[0]) is known[1]:
        return known[2]
    module_name, _, attributes = path.partition(":") if ":" in path else _split(path)
    module = _import(module_name, source)
    target = _walk(module, attributes, text)
    _found[path, source] = (module_name, module, target)
    return target


_found: dict[tuple[str, Path | None], tuple[str, ModuleType, Any]] = {}
"""Cache of imported objects, valid until the module is reloaded: a study resolves them for every trial."""


def activate(source: Path) -> None:
    """Put the user's code first on the import path; remove modules and paths of another project."""
    here = _real(source)
    if _activated == [here] and sys.path[:1] == [str(here)]:
        return
    path = [str(here), *(entry for entry in sys.path if entry not in (str(here), *_added))]
    if sys.path != path:
        is_own = str(here) in _added or str(here) not in sys.path
        sys.path[:], _added[:] = path, [str(here)] if is_own else []
        importlib.invalidate_caches()
    own = f"{here}{os.sep}"
    others = tuple(f"{other}{os.sep}" for other in _activated if other != here)
    for name, module in sys.modules.copy().items():
        file = getattr(module, "__file__", None)
        if not isinstance(file, str) or not file.startswith(others) or file.startswith(own):
            continue
        if not is_installed(name, file) and name != "__main__":
            del sys.modules[name]
    _activated[:] = [here]


@functools.lru_cache(maxsize=64)
def _real(source: Path) -> Path:
    return source.resolve()


def _split(path: str) -> tuple[str, str, str]:
    """Split a class path after its module: the longest prefix that can be imported as one."""
    parts = path.split(".")
    for length in range(len(parts) - 1, 1, -1):
        name = ".".join(parts[:length])
        if name in sys.modules or _exists(name):
            return name, ".", ".".join(parts[length:])
    return parts[0], ".", ".".join(parts[1:])


def _exists(name: str) -> bool:
    parent = name.rpartition(".")[0]
    try:
        if parent and parent not in sys.modules and not _exists(parent):
            return False
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError, AttributeError):
        return False


def _import(name: str, source: Path | None) -> ModuleType:
    try:
        module = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            where = f" in {source.name}/ or among the installed packages" if source else ""
            raise ResolveError(
                f"there is no module {error.name!r}{where}", suggestion=_near_module(name, source)
            ) from error
        raise ResolveError(_failure(name, error, source)) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise ResolveError(_failure(name, error, source)) from error
    _check_shadow(module, name, source)
    return module


def _check_shadow(module: ModuleType, name: str, source: Path | None) -> None:
    top = name.partition(".")[0]
    if source is None or not any((source / entry).exists() for entry in (f"{top}.py", f"{top}/__init__.py")):
        return
    file = getattr(module, "__file__", None)
    if not (file and Path(file).resolve().is_relative_to(source.resolve())):
        raise ResolveError(
            f"your module {top!r} is shadowed by another module of the same name ({file or 'built-in'}); "
            "rename it"
        )


def _failure(name: str, error: BaseException, source: Path | None) -> str:
    """Describe an import error, with its location in the user's code."""
    where = ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f" at {Path(error.filename).name}:{error.lineno}"
    else:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not frame.filename.startswith("<frozen")
        ]
        own = [frame for frame in frames if source and Path(frame.filename).is_relative_to(source.resolve())]
        for frame in (own or frames)[-1:]:
            where = f" at {Path(frame.filename).name}:{frame.lineno}"
    detail = error.msg if isinstance(error, SyntaxError) else error
    text = f"importing {name!r} failed{where}: {type(error).__name__}: {detail}"
    if isinstance(error, ImportError) and "relative import" in str(error) and source is not None:
        text += f"; modules in {source.name}/ are not a package; import them by name: from models import …"
    return text


def _walk(module: ModuleType, attributes: str, text: str) -> Any:
    found: Any = module
    for name in attributes.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            names = (
                [n for n, v in vars(found).items() if not n.startswith("_") and callable(v)]
                if hasattr(found, "__dict__")
                else []
            )
            owner = (
                found.__name__
                if inspect.ismodule(found)
                else type(found).__name__
                if not inspect.isclass(found)
                else found.__qualname__
            )
            best = nearest(name, names)
            suggestion = text[: len(text) - len(name)] + best if best and text.endswith(name) else best
            raise ResolveError(f"{owner} has nothing named {name!r}", suggestion=suggestion) from None
    return found


def _near_module(name: str, source: Path | None) -> str:
    parent, _, last = name.rpartition(".")
    if parent:
        package = sys.modules.get(parent)
        paths = list(getattr(package, "__path__", []))
        best = nearest(last, [info.name for info in pkgutil.iter_modules(paths)])
        return f"{parent}.{best}" if best else ""
    own = [info.name for info in pkgutil.iter_modules([str(source)])] if source else []
    return nearest(name, own)
