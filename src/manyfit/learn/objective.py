"""How a batch becomes an output and a loss, for every form that a model may have.

A model may return

- an output: the loss comes from the config;
- `(outputs, loss)`, with one loss for the batch or one for each row;
- `(outputs, None)`: it has updated itself.

It is called with the inputs by position, or, where they are a dict, with those that `forward` has
parameters for. A parameter named `target` gets the target.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from manyfit.core.errors import RunFailed
from manyfit.data import Batch
from manyfit.learn.rowwise import reduction_of, rowwise

log = logging.getLogger("manyfit")


def _nested(rows: Any) -> Tensor:
    """Rows of different lengths as one tensor."""
    if any(not hasattr(row, "dtype") or row.dtype == object for row in rows.reshape(-1)):
        raise RunFailed("the data has text where a model needs numbers; read it as numbers, or leave it out")
    return torch.nested.nested_tensor([torch.from_numpy(row) for row in rows], layout=torch.jagged)


class Objective:
    """A module and what it is measured by."""

    def __init__(self, module: nn.Module, loss: Callable[..., Tensor] | None, device: torch.device) -> None:
        self.loss = loss
        self.device = device
        self.on_cpu = device.type == "cpu"
        self.sums = loss is not None and reduction_of(loss) == "sum"
        self.row_loss = rowwise(loss) if loss is not None else None
        self._forms(module)
        self._noted = False

    def _forms(self, module: nn.Module) -> None:
        """Look at what `forward` takes."""
        parameters = list(inspect.signature(module.forward).parameters.values())
        by_name = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        self._open = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._names = set(by_name)
        self._required = {name for name, p in by_name.items() if p.default is p.empty}
        self._takes_target = "target" in by_name

    def __call__(self, module: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """The output and the loss to descend; None if the model has updated itself."""
        result = self._called(module, batch)
        if isinstance(result, Tensor):
            return result, self._own_loss(result, batch)
        output, loss = self._split(module, result)
        self.sums = False
        if loss is None:
            return output, None
        self._check_single(module)
        weight = self._weight(batch)
        if weight is not None and not loss.ndim:
            raise RunFailed(
                f"the data has weights, but {type(module).__name__} returns one loss for a batch; "
                "return one for each row"
            )
        return output, loss if not loss.ndim else loss.mean() if weight is None else (loss * weight).mean()

    def rows(self, module: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """The output and one loss for each row; None where there is no loss."""
        result = self._called(module, batch)
        output, given = (result, None) if isinstance(result, Tensor) else self._split(module, result)
        if given is not None:
            self._check_single(module)
        if self.row_loss is not None and batch.target is not None:
            return output, self.row_loss(output, self.target(batch))
        if given is None or given.shape == (len(batch),):
            return output, given
        if len(batch) == 1:
            return output, given.reshape(1)
        if not self._noted:
            self._noted = True
            log.warning(
                "%s returns one loss for a batch, so rows are evaluated one by one; return one loss for each "
                "row to be faster",
                type(module).__name__,
            )
        alone = [self._split(module, self._called(module, batch.part(i, i + 1))) for i in range(len(batch))]
        return output, torch.stack([loss.reshape(()) for _, loss in alone if loss is not None])

    def _check_single(self, module: nn.Module) -> None:
        if self.loss is not None:
            raise RunFailed(
                f"{type(module).__name__} returns its own loss, and train.loss is set as well; "
                "one of them counts: write train.loss: null, or return the output alone"
            )

    def target(self, batch: Batch) -> Tensor:
        """The target on the device."""
        if batch.target is None:
            raise RunFailed("the data has no target, but the loss needs one")
        return self.tensor(batch.target)

    def tensor(self, array: Any) -> Tensor:
        """An array, or a tensor, on the device."""
        if isinstance(array, Tensor):
            found = array
        else:
            found = torch.from_numpy(array) if array.dtype.kind not in "OUS" else _nested(array)
        return found if self.on_cpu else found.to(self.device, non_blocking=True)

    def _own_loss(self, output: Tensor, batch: Batch) -> Tensor:
        if self.loss is None:
            raise RunFailed(
                "there is no loss: the model returned an output alone, and train.loss is null; "
                "set train.loss, or return (outputs, loss)"
            )
        if batch.weight is None:
            loss = self.loss(output, self.target(batch))
            if not isinstance(loss, Tensor) or loss.ndim:
                shape = (
                    f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
                )
                raise RunFailed(f"the loss must return a tensor with one number, but returned {shape}")
            return loss
        assert self.row_loss is not None
        losses: Tensor = self.row_loss(output, self.target(batch)) * self._weight(batch)
        return losses.sum() if self.sums else losses.mean()

    def _weight(self, batch: Batch) -> Any:
        return None if batch.weight is None else self.tensor(batch.weight)

    def _called(self, module: nn.Module, batch: Batch) -> Any:
        inputs = batch.inputs
        if isinstance(inputs, dict):
            return module(**self._matched(module, inputs, batch))
        extra = {"target": self.target(batch)} if self._takes_target and batch.target is not None else {}
        if isinstance(inputs, tuple | list):
            return module(*(self.tensor(array) for array in inputs), **extra)
        return module(self.tensor(inputs), **extra) if extra else module(self.tensor(inputs))

    def taken(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Those of several inputs that `forward` has parameters for."""
        return {name: array for name, array in inputs.items() if self._open or name in self._names}

    def _matched(self, module: nn.Module, inputs: Mapping[str, Any], batch: Batch) -> dict[str, Tensor]:
        given = self.taken(inputs)
        if self._takes_target and "target" not in given and batch.target is not None:
            given["target"] = batch.target
        if missing := self._required - set(given):
            raise RunFailed(
                f"{type(module).__name__}.forward needs {', '.join(sorted(missing))}, "
                f"but the batch has {', '.join(inputs)}"
            )
        return {name: self.tensor(array) for name, array in given.items()}

    def _split(self, module: nn.Module, result: Any) -> tuple[Tensor, Tensor | None]:
        if isinstance(result, Tensor):
            return result, None
        if isinstance(result, tuple | list) and len(result) == 2:
            outputs, loss = result
            if isinstance(outputs, Mapping):
                outputs = next(iter(outputs.values()), None)
            if isinstance(outputs, Tensor) and (loss is None or isinstance(loss, Tensor)):
                return outputs, loss
        raise RunFailed(
            f"{type(module).__name__} must return a tensor, or (outputs, loss), "
            f"but returned a {type(result).__name__}"
        )
