"""Callbacks: implement the protocol `Callback`, and pass an instance to `manyfit.train`."""

from manyfit.run.loop.cohort import Cohort
from manyfit.run.loop.plan import Boundary
from manyfit.run.loop.trainer import Callback

__all__ = ["Boundary", "Callback", "Cohort"]
