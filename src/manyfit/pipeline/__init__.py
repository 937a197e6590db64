"""Public names for five components: loader, augmentor, preprocessor, model builder and evaluator.

| name | meaning |
|---|---|
| `DataLoaderBase`, `AugmentorBase`, `PreprocessorBase`, `ModelBuilderBase`, `EvaluatorBase` | base classes |
| `BaseClass`, `ConfigStruct` | their common base class, and the config that each component receives |
| `Compiled` | a PyTorch module with its loss and optimizer, as a model builder returns it |
| `batched` | decorator for evaluation functions that accept many data points at once |
| `ComponentData`, `model_builder`, `evaluator` | the components as parts of a run, as exports name them |
| `Orchestrator`, `TFKerasTrainer` | `manyfit train` from Python |

| module | contents |
|---|---|
| `components` | the base classes |
| `adapters` | the components as data, model and evaluator of a run |
| `loader_copies` | copies of the loader in its initial state |
| `generators` | the generators of one split: created, checked, augmented, preprocessed and batched |
| `training_batches` | endless training batches, positioned by (seed, step) |
| `row_numbers` | the numbers by which rows are recognized after preprocessing |
| `report_passes` | passes over a split for a report |
| `source` | a split as a data source |
| `orchestrator` | training from Python |
| `utils` | `ConfigStruct` under its former import path |
"""

from manyfit.learn.models import Compiled
from manyfit.pipeline.adapters import ComponentData, evaluator, model_builder
from manyfit.pipeline.components import (
    AugmentorBase,
    BaseClass,
    ConfigStruct,
    DataLoaderBase,
    EvaluatorBase,
    ModelBuilderBase,
    PreprocessorBase,
)
from manyfit.pipeline.orchestrator import Orchestrator, TFKerasTrainer
from manyfit.run.build.evaluator import batched

__all__ = [
    "AugmentorBase",
    "BaseClass",
    "Compiled",
    "ComponentData",
    "ConfigStruct",
    "DataLoaderBase",
    "EvaluatorBase",
    "ModelBuilderBase",
    "Orchestrator",
    "PreprocessorBase",
    "TFKerasTrainer",
    "batched",
    "evaluator",
    "model_builder",
]
