"""What is measured of every image."""

import numpy as np

from manyfit.pipeline import EvaluatorBase


def margin(y_true, y_pred):
    """How far the right class is ahead of the best wrong one; negative where the model is wrong."""
    return y_pred[y_true] - np.delete(y_pred, y_true).max()


class Evaluator(EvaluatorBase):
    def get_eval_funcs(self):
        return {"margin": margin, "right": "accuracy"}
