"""What sees a run while it is trained: subclass or imitate `Callback`, and pass it to `manyfit.train`."""

from manyfit.run.cohort import Cohort
from manyfit.run.plan import Boundary
from manyfit.run.trainer import Callback

__all__ = ["Boundary", "Callback", "Cohort"]
