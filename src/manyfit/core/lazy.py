"""Lazy imports."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from manyfit.core.errors import ExtraMissing


def import_optional(package: str, extra: str) -> ModuleType:
    """Import an optional package, or raise an error that names its extra."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name and package.startswith(error.name):
            raise ExtraMissing(package, extra) from error
        raise


def call_later(path: str, *given: Any) -> Any:
    """Call a function of an upper layer by its path: results can draw themselves, if that is asked for."""
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)(*given)


def attribute(module: str, names: Mapping[str, str], name: str) -> Any:
    """Implement a module's `__getattr__`: import `name` from its module in the table `names`."""
    if name not in names:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return getattr(importlib.import_module(names[name]), name)
