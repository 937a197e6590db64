"""Five components as the data, the model and the evaluator of a run."""

from __future__ import annotations

import functools
import inspect
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Gt

from manyfit.config.typed.kinds import Kind, Verbatim
from manyfit.config.typed.roles import AUGMENTOR, DATA_LOADER, EVALUATOR, MODEL_BUILDER, PREPROCESSOR
from manyfit.core.errors import ManyfitError, UsageError
from manyfit.core.tracebacks import user_frame
from manyfit.data.source import Split
from manyfit.pipeline.components import AugmentorBase, ConfigStruct, EvaluatorBase, ModelBuilderBase
from manyfit.pipeline.loader_copies import Kept
from manyfit.pipeline.source import ComponentSource


def build_component(cls: type, *args: Any) -> Any:
    """Create a component; errors name it."""
    try:
        return cls(*args)
    except ManyfitError:
        raise
    except Exception as error:
        what = f"{cls.__module__}.{cls.__qualname__} cannot be created: {type(error).__name__}: {error}"
        takes = list(inspect.signature(cls).parameters)
        if isinstance(error, TypeError) and "argument" in str(error) and len(takes) != len(args):
            wanted = "(config, data_dir)" if len(args) == 2 else "(config)"
            what += f"; {cls.__name__}.__init__ must accept {wanted}, but accepts ({', '.join(takes)})"
        raise UsageError(f"{what}\n  at {user_frame(error)}") from error


class ComponentData:
    """Loader, augmentor and preprocessor as the data of a run."""

    def __init__(
        self,
        loader: Annotated[type, DATA_LOADER],
        preprocessor: Annotated[type, PREPROCESSOR],
        settings: Annotated[ConfigStruct, Verbatim],
        batch_size: Annotated[int, Gt(0)],
        data_dir: Annotated[Path, Kind.NEUTRAL],
        augmentor: Annotated[type | None, AUGMENTOR] = None,
        augment_training: bool | None = None,
        augment_validation: bool = False,
    ) -> None:
        self.batch_size = batch_size
        self.settings = settings
        self._kept = Kept(functools.partial(build_component, loader, settings, data_dir))
        self.loader = self._kept.loader
        self.augmentor: AugmentorBase | None = (
            build_component(augmentor, settings) if augmentor is not None else None
        )
        self.preprocessor = build_component(preprocessor, settings)
        if self.augmentor is None and (augment_training or augment_validation):
            key = "do_train_augmentation" if augment_training else "do_validation_augmentation"
            raise UsageError(f"{key} is true, but there is no augmentor_class")
        self._augmented = {
            "train": self.augmentor is not None and augment_training is not False,
            "validation": augment_validation,
            "test": False,
        }
        if augment_validation and _is_missing(self.augmentor, "add_validation_augmentation"):
            name = type(self.augmentor).__name__
            raise UsageError(
                f"do_validation_augmentation is true, but {name} has no add_validation_augmentation"
            )

    def source(self, split: Split) -> ComponentSource:
        """Return the data source of a split: augmented, preprocessed and batched."""
        return ComponentSource(
            split,
            self.loader,
            self.augmentor if self._augmented[split] else None,
            self.preprocessor,
            self.batch_size,
            self._kept.renew,
        )


def _is_missing(augmentor: Any, method: str) -> bool:
    return getattr(type(augmentor), method) is getattr(AugmentorBase, method)


def model_builder(
    builder: Annotated[type, MODEL_BUILDER], settings: Annotated[ConfigStruct, Verbatim]
) -> ModelBuilderBase:
    """Create the model builder of a run."""
    found: ModelBuilderBase = build_component(builder, settings)
    return found


def evaluator(
    evaluator: Annotated[type, EVALUATOR], settings: Annotated[ConfigStruct, Verbatim]
) -> EvaluatorBase:
    """Create the evaluator of a run."""
    found: EvaluatorBase = build_component(evaluator, settings)
    return found
