"""Imports that wait until they are needed."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from manyfit.core.errors import ExtraMissing


def import_optional(package: str, extra: str) -> ModuleType:
    """Import an optional package, or say which extra brings it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        if error.name and package.startswith(error.name):
            raise ExtraMissing(package, extra) from error
        raise


def attribute(module: str, names: Mapping[str, str], name: str) -> Any:
    """Serve a module's `__getattr__`: look `name` up where the table `names` says that it lives."""
    if name not in names:
        raise AttributeError(f"module {module!r} has no attribute {name!r}")
    return getattr(importlib.import_module(names[name]), name)
