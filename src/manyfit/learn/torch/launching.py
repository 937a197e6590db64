"""How the steps of a learner are launched."""

from __future__ import annotations

from dataclasses import dataclass

import torch


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
