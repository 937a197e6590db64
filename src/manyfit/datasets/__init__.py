"""Data sets included in manyfit."""

from manyfit.datasets.digits import Digits

__all__ = ["Digits"]
