"""Per-image evaluation functions."""

import numpy as np

from manyfit.pipeline import EvaluatorBase


def margin(y_true, y_pred):
    """Return the lead of the correct class over the best wrong one; negative if the model is wrong."""
    return y_pred[y_true] - np.delete(y_pred, y_true).max()


class Evaluator(EvaluatorBase):
    def get_eval_funcs(self):
        return {"margin": margin, "right": "accuracy"}
