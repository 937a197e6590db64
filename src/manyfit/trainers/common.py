"""The former name of `Model`."""

from manyfit.trainers.model import Model as LernomaticModel

__all__ = ["LernomaticModel"]
