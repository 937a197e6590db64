"""The learner for one PyTorch module: module, loss, optimiser and schedule."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from manyfit.core.errors import RunFailed
from manyfit.core.seeds import derive
from manyfit.core.state import State
from manyfit.data import Batch
from manyfit.learn.learner import Metrics, Outputs
from manyfit.learn.pack import pack, unpack
from manyfit.learn.rowwise import reduction_of, rowwise

RowMetric = Callable[[Tensor, Tensor], Tensor]


@dataclass
class TorchLearner:
    """Trains one module. Randomness inside the model is a function of (seed, step)."""

    module: nn.Module
    loss: Callable[..., Tensor]
    optimizer: torch.optim.Optimizer
    scheduler: Any = None
    scheduler_every: Literal["step", "epoch"] = "step"
    steps_per_epoch: int = 1
    metrics: Mapping[str, RowMetric] = field(default_factory=dict)
    seed: int = 0
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    n: int = 1
    step: int = 0

    def __post_init__(self) -> None:
        self._stream = derive(self.seed, "model")
        self._row_loss = rowwise(self.loss)
        self._sums = reduction_of(self.loss) == "sum"
        self._waits_for_metric = isinstance(self.scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau)

    def train(self, batches: Iterator[Batch], steps: int) -> Metrics:
        """Train for some steps and return the sums of loss and rows."""
        self.module.train()
        total = torch.zeros((), dtype=torch.float64, device=self.device)
        rows, rate = 0, 0.0
        for _ in range(steps):
            batch = next(batches)
            self._reseed()
            total += self._update(batch) * (1 if self._sums else len(batch))
            rate = self.optimizer.param_groups[0]["lr"]
            rows += len(batch)
            self.step += 1
            if (
                self.scheduler is not None
                and not self._waits_for_metric
                and (self.scheduler_every == "step" or self.step % self.steps_per_epoch == 0)
            ):
                self.scheduler.step()
        counts = torch.tensor([[rows], [float(rate)]], dtype=torch.float64)
        return {"loss": total[None], "rows": counts[0], "lr": counts[1]}

    def _update(self, batch: Batch) -> Tensor:
        """One step of the optimiser; the optimiser may ask for the loss more than once."""
        first: list[Tensor] = []

        def closure() -> Tensor:
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.loss(self._forward(batch), self._target(batch))
            torch.autograd.backward(loss)
            first.append(loss.detach())
            return loss

        if isinstance(self.optimizer, torch.optim.LBFGS):
            self.optimizer.step(closure)  # type: ignore[no-untyped-call]
        else:
            closure()
            self.optimizer.step()
        return first[0]

    @torch.no_grad()
    def evaluate(self, batches: Iterator[Batch]) -> Iterator[Outputs]:
        """Predict, with a loss and every metric for each row."""
        self.module.eval()
        for batch in batches:
            output, target = self._forward(batch), self._target(batch)
            rows = {"loss": self._rows("loss", self._row_loss(output, target), batch)}
            for name, metric in self.metrics.items():
                rows[name] = self._rows(name, self._measured(name, metric, output, target), batch)
            yield Outputs(batch.index, _numpy(output)[None], _numpy(target)[None], rows)

    @staticmethod
    def _measured(name: str, metric: RowMetric, output: Tensor, target: Tensor) -> Tensor:
        try:
            return torch.as_tensor(metric(output, target))
        except Exception as error:
            shapes = f"output {tuple(output.shape)}, target {tuple(target.shape)}"
            raise RunFailed(
                f"the metric {name!r} failed on {shapes}: {type(error).__name__}: {error}"
            ) from error

    def observe(self, rows: Sequence[Mapping[str, float]]) -> None:
        """Tell a schedule that waits for the validation loss what it was."""
        if self._waits_for_metric and "val_loss" in rows[0]:
            self.scheduler.step(rows[0]["val_loss"])

    def state(self) -> Sequence[State]:
        """Weights, optimiser, schedule and step."""
        parts: dict[str, Any] = {
            "model": self.module.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "step": self.step,
        }
        if self.scheduler is not None:
            parts["scheduler"] = self.scheduler.state_dict()
        return [pack(parts)]

    def load(self, states: Sequence[State]) -> None:
        """Go on from a state."""
        parts = unpack(states[0])
        try:
            self.module.load_state_dict(parts["model"])
            self.optimizer.load_state_dict(parts["optimizer"])
        except (RuntimeError, ValueError, KeyError) as error:
            raise RunFailed(f"the checkpoint does not fit the model: {error}") from error
        if self.scheduler is not None and "scheduler" in parts:
            self.scheduler.load_state_dict(parts["scheduler"])
        self.step = parts["step"]

    def _reseed(self) -> None:
        # torch's CPU generator keeps 32 bits of its seed; consecutive numbers stay distinct in them.
        torch.default_generator.manual_seed((self._stream + self.step) & 0x7FFF_FFFF_FFFF_FFFF)
        if self.step % self.steps_per_epoch == 0:
            # Generators that are slow to seed; a checkpoint stands at the end of an epoch.
            random.seed(self._stream + self.step)
            np.random.seed((self._stream + self.step) & 0xFFFF_FFFF)
        if self.device.type == "cuda":
            torch.cuda.manual_seed(self._stream + self.step)

    def _forward(self, batch: Batch) -> Tensor:
        inputs = batch.inputs
        if isinstance(inputs, dict):
            output = self.module(**{name: self._tensor(array) for name, array in inputs.items()})
        elif isinstance(inputs, tuple):
            output = self.module(*(self._tensor(array) for array in inputs))
        else:
            output = self.module(self._tensor(inputs))
        if not isinstance(output, Tensor):
            raise RunFailed(
                f"{type(self.module).__name__} must return a tensor, but returned a {type(output).__name__}"
            )
        return output

    def _target(self, batch: Batch) -> Tensor:
        if batch.target is None:
            raise RunFailed("the data has no target, but the loss needs one")
        return self._tensor(batch.target)

    def _tensor(self, array: Any) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def _rows(self, name: str, values: Tensor, batch: Batch) -> Any:
        if values.shape != (len(batch),):
            raise RunFailed(
                f"the metric {name!r} must return one number for each of {len(batch)} rows, "
                f"but returned shape {tuple(values.shape)}"
            )
        return _numpy(values).astype(np.float64)[None]


def _numpy(tensor: Tensor) -> Any:
    return tensor.detach().cpu().numpy()
