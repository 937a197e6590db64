"""The samplers of manyfit. Any Optuna sampler can be used as well."""

from manyfit.study.search.sampling import Grid

__all__ = ["Grid"]
