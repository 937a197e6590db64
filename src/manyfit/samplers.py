"""Search methods of manyfit's own. Any sampler of Optuna can be named beside them."""

from manyfit.study.search.sampling import Grid

__all__ = ["Grid"]
