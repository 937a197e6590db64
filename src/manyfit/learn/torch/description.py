"""Modules and devices in words."""

from __future__ import annotations

import torch
from torch import nn


def count_parameters(module: nn.Module) -> tuple[int, int]:
    """Return the number of parameters, and of those that are trained."""
    counts = [(p.numel(), p.requires_grad) for p in module.parameters()]
    return sum(n for n, _ in counts), sum(n for n, is_trained in counts if is_trained)


def describe_device(device: torch.device) -> str:
    """Return the device and, unless it is the CPU, the version of torch."""
    if device.type == "cpu":
        return "cpu"
    name = f"{torch.cuda.get_device_name(device)}, " if device.type == "cuda" else ""
    return f"{device} ({name}torch {torch.__version__})"
