"""The wrapper of a model: loaders, step, evaluation and optimizers, each of which can be replaced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from manyfit.core.errors import UsageError
from manyfit.data import Splits
from manyfit.data.loader import is_loader, take_apart
from manyfit.trainers.trainer import Trainer
from manyfit.wrapper.configs import RunConfig
from manyfit.wrapper.describe import check_typed, describe_experiment, update_from_run
from manyfit.wrapper.translation import WrapperFunctions


class ModelWrapper(Trainer):
    """Trains a model whose `forward` returns `(predictions, loss)`, or anything that a trainer can train.

    `ModelWrapper(Model).train(config)` trains in Python; in a config it is `trainer: {class: ...}` beside
    `model:`. What a subclass may override, besides the methods of `Trainer`:

    | method | returns |
    |---|---|
    | `make_dataloader_train/val/test(config)` | the loader of a split, or None |
    | `custom_evaluation(model, dataloader)` | the numbers of a whole split, by name |
    | `evaluation_functions()` | functions of all outputs of a split, by name |
    | `create_model(config)` | the model |
    | `create_optimizer(model)`, `create_scheduler(optimizer)`, `create_scaler()` | what their names say |
    """

    config: Any = None
    model_class: Any = None

    def __init__(self, model_class: Any = None, config: Any = None, **kwargs: Any) -> None:
        """Accept the class of the model; the config follows with `train`."""
        super().__init__(**kwargs)

    def as_functions(self) -> WrapperFunctions:
        """Return the functions of this wrapper, for the learner that calls them."""
        return WrapperFunctions(self)

    # -- what to override -------------------------------------------------------------------------

    def make_dataloader_train(self, config: Any) -> Any:
        """Return the training loader."""
        raise UsageError(f"{type(self).__name__} needs make_dataloader_train(config)")

    def make_dataloader_val(self, config: Any) -> Any:
        """Return the validation loader; None without one."""
        return None

    def make_dataloader_test(self, config: Any) -> Any:
        """Return the test loader; None without one."""
        return None

    def custom_evaluation(self, model: nn.Module, dataloader: Any) -> Mapping[str, float] | None:
        """Return numbers of a whole split; without an override, they are those of the model."""
        return None

    def evaluation_functions(self) -> Mapping[str, Callable[..., Any]]:
        """Return functions of all outputs of a split; arguments are outputs and inputs by name."""
        return {}

    def create_model(self, config: Any) -> nn.Module:
        """Return the model: the class, called with the config of the model."""
        if self.model_class is None:
            raise UsageError(f"{type(self).__name__} has no model: pass its class, or override create_model")
        found: nn.Module = self.model_class(config.model) if config is not None else self.model_class()
        return found

    def create_optimizer(self, model: nn.Module) -> torch.optim.Optimizer | None:
        """Return the optimizer; None for that of the config."""
        return None

    def create_scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        """Return the schedule; None for that of the config."""
        return None

    def create_scaler(self) -> Any:
        """Return the gradient scaler; None for that of the config."""
        return None

    # -- in Python --------------------------------------------------------------------------------

    def train(self, config: Any = None) -> Any:
        """Train all epochs; in Python, train the model with a typed config."""
        return super().train() if self._bench is not None else self._launch(config)

    def _launch(self, config: Any = None) -> Any:
        self.__dict__["config"] = config if config is not None else self.__dict__.get("config")
        if not isinstance(self.config, RunConfig):
            raise UsageError(f"{type(self).__name__}.train needs a RunConfig, not {self.config!r:.40}")
        check_typed(self.config)
        if self.model is None:
            self.__dict__["model"] = self._create_seeded()
        given = self.config
        self.__dict__.update(
            num_epochs=given.train.epochs, batch_size=given.train.batch_size, seed=given.random_seed,
            folder=given.experiment_dir, verbose=given.verbose,
        )  # fmt: skip
        return super()._launch()

    def _create_seeded(self) -> nn.Module:
        from manyfit.core.seeds import derive
        from manyfit.learn.models import build_seeded

        seed = derive(self.config.random_seed, "weights")
        found: nn.Module = build_seeded(seed, lambda: self.create_model(self.config))
        return found

    def _gather_data(self) -> Splits:
        found: dict[str, Any] = {}
        size = self.config.train.batch_size
        for split, flag in (("train", "train"), ("validation", "val"), ("test", "test")):
            loader = getattr(self, f"make_dataloader_{flag}")(self.config)
            if is_loader(loader):
                loader, rows = take_apart(loader, f"make_dataloader_{flag}")
                size = rows if split == "train" else size
            found[split] = loader
        return Splits(**found, batch_size=size)

    def _sync_config(self, config: Any) -> None:
        if isinstance(self.config, RunConfig):
            update_from_run(self.config, config)

    def _describe_config(self, data: Splits, folder: Any, is_kept: bool, key: str) -> dict[str, Any]:
        return describe_experiment(self, folder, is_kept, key)
