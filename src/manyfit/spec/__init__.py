"""Specs: rows that are prepared, and models that are trained, by the methods of two classes.

| module | contents |
|---|---|
| `minibatch` | `MinibatchSpec`: how models are created, trained and evaluated |
| `trainer` | `SpecTrainer`, the component of a config that trains a minibatch spec |
| `functions` | the methods of a minibatch spec, as the learner calls them |
| `experiment`, `study`, `results` | `Experiment`: all of it in one object |
| `data` | `EtlData`, the component of a config with prepared rows |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from manyfit.core.lazy import attribute

if TYPE_CHECKING:
    from manyfit.data.etl.accounting import EtlResult
    from manyfit.data.etl.plan import EtlOptions
    from manyfit.data.etl.spec import ETLSpec
    from manyfit.spec.data import EtlData
    from manyfit.spec.experiment import Experiment, ExperimentParams
    from manyfit.spec.minibatch import MinibatchSpec
    from manyfit.spec.trainer import SpecTrainer

NAMES: Final = {
    "EtlData": "manyfit.spec.data",
    "EtlOptions": "manyfit.data.etl.plan",
    "EtlResult": "manyfit.data.etl.accounting",
    "ETLSpec": "manyfit.data.etl.spec",
    "Experiment": "manyfit.spec.experiment",
    "ExperimentParams": "manyfit.spec.experiment",
    "MinibatchSpec": "manyfit.spec.minibatch",
    "SpecTrainer": "manyfit.spec.trainer",
}
"""Where each name is: preparing rows needs no PyTorch."""

__all__ = [
    "ETLSpec",
    "EtlData",
    "EtlOptions",
    "EtlResult",
    "Experiment",
    "ExperimentParams",
    "MinibatchSpec",
    "SpecTrainer",
]


def __getattr__(name: str) -> Any:
    return attribute(__name__, NAMES, name)
