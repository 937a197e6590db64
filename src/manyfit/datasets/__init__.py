"""Data sets that ship with manyfit."""

from manyfit.datasets.digits import Digits

__all__ = ["Digits"]
