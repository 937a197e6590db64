"""What sees a run while it is trained: subclass or imitate `Callback`, and pass it to `manyfit.train`."""

from manyfit.run.loop.cohort import Cohort
from manyfit.run.loop.plan import Boundary
from manyfit.run.loop.trainer import Callback

__all__ = ["Boundary", "Callback", "Cohort"]
