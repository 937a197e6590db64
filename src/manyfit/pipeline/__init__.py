"""The door for training code in five components: loader, augmentor, preprocessor, model builder, evaluator.

| name | what it is |
|---|---|
| `DataLoaderBase`, `AugmentorBase`, `PreprocessorBase`, `ModelBuilderBase`, `EvaluatorBase` | subclass them |
| `BaseClass`, `ConfigStruct` | what they have in common, and the config that they are given |
| `Compiled` | a PyTorch module with its loss and optimiser, as a model builder returns it |
| `batched` | marks an evaluation function that takes many data points at once |
| `ComponentData`, `model_builder`, `evaluator` | the components as parts of a run, as exports name them |
| `Orchestrator`, `TFKerasTrainer` | `manyfit train`, from Python |
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
