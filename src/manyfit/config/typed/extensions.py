"""What upper layers add to what a config may say, while a process runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

MODELS: Final[dict[str, Callable[[Any], bool]]] = {}
"""By name: whether a class may stand at `model:`, though it is none of those that every config knows."""
FORMATS: Final[dict[str, tuple[str, ...]]] = {}
"""By name: formats of export that models of a further kind have."""
