"""The five components. Each can be used alone, with `config=None`, to try it out."""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from manyfit.config.schema.attributes import attributes_of, read_attributes
from manyfit.config.typed.config_struct import ConfigStruct

__all__ = [
    "AugmentorBase",
    "BaseClass",
    "ConfigStruct",
    "DataLoaderBase",
    "EvaluatorBase",
    "ModelBuilderBase",
    "PreprocessorBase",
]


class BaseClass(abc.ABC):  # noqa: B024
    """What components have in common: parameters with defaults, which a config can change.

    There are two ways to say what the parameters are. Set them in `_set_defaults` and read them from the
    config, in the layout in which it was written, in `_load_params`. Or annotate them::

        class ModelBuilder(ModelBuilderBase):
            n_filters: int = 512                 # model_builder.n_filters, else n_filters at the top
            dropout_rate: float = 0.2

    Then the section of the component is checked before anything runs: an unknown key is an error.
    """

    section: ClassVar[str] = ""
    """The section of the config that annotated parameters are read from."""

    def __init__(self, config: ConfigStruct | None = None) -> None:
        self.config = config
        self._set_defaults()
        if config is not None:
            if attributes_of(type(self)):
                self._take_attributes(config)
            self._load_params(config)

    def _take_attributes(self, config: ConfigStruct) -> None:
        if self.section in config:
            list(config[self.section])  # all of its keys count as read: they have been checked
        project = getattr(config, "_project", None) or Path.cwd()
        found = read_attributes(type(self), self.section, _plain(config), project)
        for name, value in found.items():
            setattr(self, name, value)
            if name in config:
                config[name]

    def _set_defaults(self) -> None:  # noqa: B027
        """Give every parameter a value, so that the class can be used without a config."""

    def _load_params(self, config: ConfigStruct) -> None:  # noqa: B027
        """Read the same parameters from the config."""


def _plain(config: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = ConfigStruct.plain(config) if isinstance(config, ConfigStruct) else config
    return found


class DataLoaderBase(BaseClass):
    """Where data points come from. A generator is a `tf.data.Dataset`, or a generator of Python."""

    section = "data_loader"

    def __init__(self, config: ConfigStruct | None = None, data_dir: str | Path | None = None) -> None:
        self.data_dir: Any = None if data_dir is None else Path(data_dir)
        super().__init__(config)

    @abc.abstractmethod
    def create_training_generator(self) -> tuple[Any, int]:
        """A generator of `(x, y, sample_weight)`, and how many data points there are."""

    @abc.abstractmethod
    def create_validation_generator(self) -> tuple[Any, int]:
        """A generator of `(x, y, sample_weight)`, always in the same order, and how many there are."""

    @abc.abstractmethod
    def create_test_generator(self) -> tuple[Any, int]:
        """A generator of `(x, y, data_id)`, and how many data points there are."""

    def get_validation_index(self) -> Sequence[Any]:
        """An id for every data point of the validation generator, in its order."""
        return range(self.create_validation_generator()[1])


class AugmentorBase(BaseClass):
    """What is done to data points at random, before they are preprocessed."""

    section = "augmentor"

    @abc.abstractmethod
    def add_augmentation(self, generator: Any) -> Any:
        """Return a generator of augmented data points, for training."""

    def add_validation_augmentation(self, generator: Any) -> Any:
        """Return a generator of augmented data points, for validation."""
        raise NotImplementedError(
            f"do_validation_augmentation is true, but {type(self).__name__} has no "
            "add_validation_augmentation(generator)"
        )


class PreprocessorBase(BaseClass):
    """What is done to every data point before the model sees it, and how they are put into batches."""

    section = "preprocessor"

    @abc.abstractmethod
    def image_preprocess(self, image: Any) -> Any:
        """Preprocess one input."""

    @abc.abstractmethod
    def label_preprocess(self, label: Any) -> Any:
        """Preprocess one label."""

    def weight_preprocess(self, weight: Any) -> Any:
        """Preprocess one weight."""
        return weight

    @abc.abstractmethod
    def add_image_preprocess(self, generator: Any) -> Any:
        """Return a generator of preprocessed inputs."""

    @abc.abstractmethod
    def add_label_preprocess(self, generator: Any) -> Any:
        """Return a generator of preprocessed labels."""

    def add_weight_preprocess(self, generator: Any) -> Any:
        """Return a generator of preprocessed weights. In tests, ids stand in their place."""
        return generator

    @abc.abstractmethod
    def batchify(self, generator: Any, n_data_points: int) -> tuple[Any, int]:
        """A generator of batches, and how many of them make an epoch."""

    def add_preprocess(self, generator: Any, n_data_points: int) -> tuple[Any, int]:
        """Inputs, labels, weights, batches, in this order."""
        generator = self.add_image_preprocess(generator)
        generator = self.add_label_preprocess(generator)
        generator = self.add_weight_preprocess(generator)
        return self.batchify(generator, n_data_points)


class ModelBuilderBase(BaseClass):
    """Makes the model."""

    section = "model_builder"

    @abc.abstractmethod
    def get_compiled_model(self) -> Any:
        """A model that is ready to fit.

        It is a compiled `keras.Model`; a `torch.nn.Module`, with `train.loss` and `train.optimizer` in the
        config, or `manyfit.pipeline.Compiled`; or an estimator with `fit` and `predict`.
        """

    def get_callbacks(self) -> Sequence[Any]:
        """Callbacks of Keras that see the training."""
        return []

    def get_class_weight(self) -> Mapping[int, float] | None:
        """How much the data points of each class count in training."""
        return None


class EvaluatorBase(BaseClass):
    """What is measured of every data point."""

    section = "evaluator"

    @abc.abstractmethod
    def get_eval_funcs(self) -> Mapping[str, Callable[..., Any] | str]:
        """Functions of `(y_true, y_pred)` of one data point by name; or the name of a metric or loss."""
