"""Search methods of manyfit's own. Any sampler of Optuna can be named beside them."""

from manyfit.study.sampling import Grid

__all__ = ["Grid"]
