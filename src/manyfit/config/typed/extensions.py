"""Registries by which upper layers extend what a config accepts, at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

MODELS: Final[dict[str, Callable[[Any], bool]]] = {}
"""By kind of learner: whether a class that is not built in is accepted as `model:`."""
FORMATS: Final[dict[str, tuple[str, ...]]] = {}
"""By kind of learner: its additional export formats."""
