"""Heavy modules, imported on first use: a worker that runs no test of TensorFlow does not pay for it."""

from __future__ import annotations

import importlib
import importlib.util
import os
from typing import Any

import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


class LazyModule:
    """Stands for a module, and imports it when a public attribute is read; pytest looks for private ones."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(importlib.import_module(self._name), name)


def needs(*names: str) -> pytest.MarkDecorator:
    """Skip the tests of a file if a package is not installed, without importing it."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} is not installed")
