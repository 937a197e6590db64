"""Predictions from trained models: `Inferrer`."""

from manyfit.run.inferrer import Inferrer

__all__ = ["Inferrer"]
