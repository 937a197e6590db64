"""The per-row metrics of manyfit. Refer to them by short name, or as `manyfit.metrics.<name>`."""

from manyfit.learn.metrics import absolute_error, accuracy, binary_accuracy, squared_error, top_k_accuracy

__all__ = ["absolute_error", "accuracy", "binary_accuracy", "squared_error", "top_k_accuracy"]
