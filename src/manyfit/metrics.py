"""The metrics of manyfit. Refer to them by short name, or as `manyfit.metrics.<name>`.

Functions have one value per row. Classes have one value per split, and need the extra `metrics`.
"""

from manyfit.learn.metrics import absolute_error, accuracy, binary_accuracy, squared_error, top_k_accuracy
from manyfit.learn.streaming_metrics import F1, Auroc, AveragePrecision, Precision, Recall

__all__ = [
    "F1",
    "Auroc",
    "AveragePrecision",
    "Precision",
    "Recall",
    "absolute_error",
    "accuracy",
    "binary_accuracy",
    "squared_error",
    "top_k_accuracy",
]
