"""How the steps of a learner are launched."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch

OFF: Final = "off"
SAVED: Final = 0.35
"""The share of the time that compiled steps save, as far as one can expect it."""
COMPILING, COMPILING_LEAF = 4.0, 0.4
"""Seconds that compiling takes, and for each parameter."""


@dataclass(frozen=True)
class Launching:
    """The settings of the config."""

    capture: str = "auto"
    """`auto`: several steps at once on a GPU; `off`: each operation by itself."""
    compile: str = "auto"
    """`auto`: if it pays; `off`; or the mode of `torch.compile`, on any device."""

    def is_wanted(self, device: torch.device) -> bool:
        """Return whether several steps are launched at once."""
        if self.capture == "off":
            return False
        return device.type == "cuda" or self.compile not in ("auto", "off")

    def choose_mode(self, device: torch.device, seconds: float, leaves: int) -> str:
        """Return the mode in which steps are compiled that would take `seconds` otherwise, or `off`."""
        if self.compile != "auto":
            return self.compile
        pays = seconds * SAVED > COMPILING + COMPILING_LEAF * leaves
        return "default" if pays and device.type == "cuda" else OFF

    def predict(self, device: torch.device, leaves: int, seconds: float) -> float:
        """Return how long steps take that take `seconds` if they are not compiled; compiling is included."""
        if not self.is_wanted(device) or self.choose_mode(device, seconds, leaves) == OFF:
            return seconds
        return COMPILING + COMPILING_LEAF * leaves + seconds * (1 - SAVED)
