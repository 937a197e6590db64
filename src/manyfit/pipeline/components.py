"""The base classes of the five components. Each can be used alone, with `config=None`."""

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
    """The common base class of components: parameters with defaults, which a config can override.

    Parameters can be declared in two ways. Set them in `_set_defaults`, and read them in `_load_params` from
    the config, in the layout of the config file. Or annotate them::

        class ModelBuilder(ModelBuilderBase):
            n_filters: int = 512                 # model_builder.n_filters, or n_filters at the top level
            dropout_rate: float = 0.2

    The section of the component is then checked before anything runs: an unknown key is an error.
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
            list(config[self.section])  # marks all keys as read: they have been checked
        project = getattr(config, "_project", None) or Path.cwd()
        found = read_attributes(type(self), self.section, _plain(config), project)
        for name, value in found.items():
            setattr(self, name, value)
            if name in config:
                config[name]

    def _set_defaults(self) -> None:  # noqa: B027
        """Set the default of every parameter, so that the class can be used without a config."""

    def _load_params(self, config: ConfigStruct) -> None:  # noqa: B027
        """Read the same parameters from the config."""


def _plain(config: Any) -> Mapping[str, Any]:
    found: Mapping[str, Any] = ConfigStruct.plain(config) if isinstance(config, ConfigStruct) else config
    return found


class DataLoaderBase(BaseClass):
    """The origin of the data points. A generator is a `tf.data.Dataset` or a Python generator."""

    section = "data_loader"

    def __init__(self, config: ConfigStruct | None = None, data_dir: str | Path | None = None) -> None:
        self.data_dir: Any = None if data_dir is None else Path(data_dir)
        super().__init__(config)

    @abc.abstractmethod
    def create_training_generator(self) -> tuple[Any, int]:
        """Return a generator of `(x, y, sample_weight)`, and the number of data points."""

    @abc.abstractmethod
    def create_validation_generator(self) -> tuple[Any, int]:
        """Return a generator of `(x, y, sample_weight)`, always in the same order, and their number."""

    @abc.abstractmethod
    def create_test_generator(self) -> tuple[Any, int]:
        """Return a generator of `(x, y, data_id)`, and the number of data points."""

    def get_validation_index(self) -> Sequence[Any]:
        """Return an ID for every data point of the validation generator, in its order."""
        return range(self.create_validation_generator()[1])


class AugmentorBase(BaseClass):
    """Random augmentation of data points, before preprocessing."""

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
    """Preprocessing of every data point, and batching."""

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
        """Return a generator of preprocessed weights. Rows of the test split hold IDs instead."""
        return generator

    @abc.abstractmethod
    def batchify(self, generator: Any, n_data_points: int) -> tuple[Any, int]:
        """Return a generator of batches, and the number of batches per epoch."""

    def add_preprocess(self, generator: Any, n_data_points: int) -> tuple[Any, int]:
        """Preprocess inputs, labels and weights, then batch them."""
        generator = self.add_image_preprocess(generator)
        generator = self.add_label_preprocess(generator)
        generator = self.add_weight_preprocess(generator)
        return self.batchify(generator, n_data_points)


class ModelBuilderBase(BaseClass):
    """The builder of the model."""

    section = "model_builder"

    @abc.abstractmethod
    def get_compiled_model(self) -> Any:
        """Return a model that is ready to be trained.

        This is a compiled `keras.Model`; a `torch.nn.Module`, with `train.loss` and `train.optimizer` in the
        config, or a `manyfit.pipeline.Compiled`; or an estimator with `fit` and `predict`.
        """

    def get_callbacks(self) -> Sequence[Any]:
        """Return Keras callbacks for training."""
        return []

    def get_class_weight(self) -> Mapping[int, float] | None:
        """Return the weight of each class in training."""
        return None


class EvaluatorBase(BaseClass):
    """The metrics of every data point."""

    section = "evaluator"

    @abc.abstractmethod
    def get_eval_funcs(self) -> Mapping[str, Callable[..., Any] | str]:
        """Return functions of `(y_true, y_pred)` of one data point, or metric or loss names, by name."""
