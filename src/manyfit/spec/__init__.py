"""Minibatch specs: models that are created, trained and evaluated by the methods of one class.

| module | contents |
|---|---|
| `minibatch` | `MinibatchSpec`, the class to derive from |
| `trainer` | `SpecTrainer`, the component of a config that trains a spec |
| `functions` | the methods of a spec, as the learner calls them |

>>> import manyfit
>>> manyfit.train("runs/spec")    # doctest: +SKIP
"""

from manyfit.spec.minibatch import MinibatchSpec
from manyfit.spec.trainer import SpecTrainer

__all__ = ["MinibatchSpec", "SpecTrainer"]
