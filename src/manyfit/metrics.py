"""Per-row metrics that ship with manyfit. Name them by their short names, or by `manyfit.metrics.<name>`."""

from manyfit.learn.metrics import absolute_error, accuracy, binary_accuracy, squared_error, top_k_accuracy

__all__ = ["absolute_error", "accuracy", "binary_accuracy", "squared_error", "top_k_accuracy"]
