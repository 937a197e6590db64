"""Modules that belong to installed packages, also if a virtual environment is inside the user's folder."""

from __future__ import annotations


def is_installed(module: str, file: str) -> bool:
    """Return whether a module is part of an installed package or of manyfit, rather than the user's code.

    >>> is_installed("torch.nn", "/project/.venv/lib/python3.12/site-packages/torch/nn/__init__.py")
    True
    """
    return "site-packages" in file or "dist-packages" in file or module.partition(".")[0] == "manyfit"
