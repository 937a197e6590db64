"""Typed configs: classes whose annotated attributes are fields, read by item or by attribute."""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Iterator
from typing import Annotated, Any, TypeVar

from annotated_types import Gt
from typing_extensions import dataclass_transform

from manyfit.config.typed.kinds import Derived, Kind
from manyfit.core.names import nearest

T = TypeVar("T")
Stateless = Annotated[T, Kind.NEUTRAL]
"""A field that does not change the result, such as a path: `root: Stateless[str] = "data"`."""

__all__ = ["ConfigBase", "Derived", "ModelConfig", "RunConfig", "Stateless", "TrainConfig"]


@dataclass_transform(kw_only_default=True)
@dataclasses.dataclass(kw_only=True)
class ConfigBase:
    """Base of typed configs. A subclass needs no decorator; its fields are given by name.

    >>> class Small(ConfigBase):
    ...     hidden: int = 8
    >>> Small(hidden=4)["hidden"], Small().hidden
    (4, 8)
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Make every subclass a dataclass."""
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(kw_only=True)(cls)
        try:
            # Inherited annotations are text that only the module of their own class can evaluate.
            hints = typing.get_type_hints(cls, include_extras=True)
        except NameError:  # a name that is imported only for type checkers: fields are checked one by one
            return
        cls.__init__.__annotations__ = {**hints, "return": None}

    def __getitem__(self, name: str) -> Any:
        if name not in self.__dataclass_fields__:
            best = nearest(name, self.__dataclass_fields__)
            hint = f"; did you mean {best!r}?" if best else ""
            raise KeyError(f"{type(self).__name__} has no field {name!r}{hint}")
        return getattr(self, name)

    def __contains__(self, name: object) -> bool:
        return name in self.__dataclass_fields__

    def keys(self) -> Iterator[str]:
        """Return the names of the fields."""
        return iter(self.__dataclass_fields__)

    def __post_init__(self) -> None:
        """Compute the derived fields."""
        for name, mark in list_derived_fields(type(self)):
            object.__setattr__(self, name, mark.compute(self))


def list_derived_fields(cls: type) -> Iterator[tuple[str, Derived]]:
    """Yield the fields of a class that are derived from others."""
    for name, hint in typing.get_type_hints(cls, include_extras=True).items():
        for mark in getattr(hint, "__metadata__", ()):
            if isinstance(mark, Derived):
                yield name, mark


class ModelConfig(ConfigBase):
    """The parameters of a model."""


class TrainConfig(ConfigBase):
    """The parameters of a training; subclasses add their own."""

    epochs: Annotated[int, Kind.BUDGET, Gt(0)] = 10
    batch_size: Annotated[int, Gt(0)] = 64
    optimizer: Any = "adam"
    """A name, a class path, or `{"class": ..., **options}`; None for a model that updates itself."""
    learning_rate: float | None = None
    scheduler: Any = None
    amp: bool = False
    """Whether to compute in bfloat16."""
    eval_epoch: Annotated[float, Gt(0)] = 1.0
    """Epochs between validations; fractions are allowed."""
    log_epoch: Annotated[float, Kind.NEUTRAL, Gt(0)] = 1.0
    early_stopping_iter: Annotated[int | None, Kind.BUDGET] = None
    """Stop after this many batches without a better validation loss."""
    divergence_factor: Annotated[float | None, Kind.BUDGET] = None
    keep_n_checkpoints: Annotated[int, Kind.NEUTRAL, Gt(0)] = 2


class RunConfig(ConfigBase):
    """The whole experiment: the configs of model and training, and where it is stored."""

    model: ModelConfig = dataclasses.field(default_factory=ModelConfig)
    train: TrainConfig = dataclasses.field(default_factory=TrainConfig)
    random_seed: int = 0
    device: Stateless[str] = "auto"
    save_dir: Stateless[str] = "data"
    """Where loader functions store data sets."""
    experiment_dir: Stateless[str | None] = None
    """The run folder; without one, nothing is kept."""
    verbose: Stateless[bool] = True
