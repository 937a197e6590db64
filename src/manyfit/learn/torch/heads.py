"""Models with several outputs, each with its own target and loss: heads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from manyfit.core.errors import RunFailed, UsageError
from manyfit.core.names import listing, nearest
from manyfit.data import Batch
from manyfit.data.nested import Nested, map_arrays
from manyfit.learn.step_log import record_value
from manyfit.learn.torch.objective import TorchObjective, has_rows


@dataclass(frozen=True)
class Head:
    """The loss of one output, and its weight in the total loss."""

    loss: Callable[..., Tensor]
    weight: float = 1.0


class HeadsObjective(TorchObjective):
    """The sum of the losses of several heads, each multiplied by its weight.

    Outputs and targets are matched to the heads by name; tuples by position, in the order of the config.
    """

    def __init__(
        self, module: nn.Module, heads: Mapping[str, Head], device: torch.device, *given: Any
    ) -> None:
        super().__init__(module, None, device, *given)
        self.heads = {name: TorchObjective(module, head.loss, device, *given) for name, head in heads.items()}
        self.weights = {name: head.weight for name, head in heads.items()}
        self.row_losses: dict[str, Tensor] = {}
        """The losses of each head for the batch that `rows` was called with last, by row."""
        self.is_coupled = False if all(each.is_coupled is False for each in self.heads.values()) else None

    def __call__(self, module: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return the output of the first head and the total loss."""
        outputs = self.by_head(self._call_model(module, batch), f"{type(module).__name__} returns")
        total: Tensor | None = None
        for name, (output, part) in self._pairs(outputs, batch).items():
            with self._name_head(name):
                loss = self.heads[name]._own_loss(output, part)
            record_value(f"loss_{name}", loss.detach())
            weighted = loss * self.weights[name]
            total = weighted if total is None else total + weighted
        return next(iter(outputs.values())), total

    def rows(
        self, module: nn.Module, batch: Batch, with_loss: bool = True
    ) -> tuple[Tensor, Tensor | None, Nested]:
        """Return the output of the first head, per-row total losses, and the outputs of all heads."""
        result = self._call_model(module, batch)
        outputs = self.by_head(result, f"{type(module).__name__} returns")
        main = next(iter(outputs.values()))
        self.row_losses = {}
        if with_loss and batch.target is not None:
            for name, (output, part) in self._pairs(outputs, batch).items():
                head = self.heads[name]
                with self._name_head(name):
                    self.row_losses[name] = head._compute_loss(output, head.target(part))
        self.is_coupled = any(bool(each.is_coupled) for each in self.heads.values())
        if self.is_coupled:  # the total has no value per row
            self.row_losses = {name: losses.mean() for name, losses in self.row_losses.items()}
        total: Tensor | None = None
        for name, losses in self.row_losses.items():
            total = losses * self.weights[name] if total is None else total + losses * self.weights[name]
        return main, total, {**outputs, **self._others(outputs, result, len(batch))}

    @contextmanager
    def _name_head(self, name: str) -> Iterator[None]:
        """Say in an error which head it is about, and how outputs and targets are matched."""
        text = (
            f"head {name!r}: outputs and targets are matched by name; tuples by position, in the order of "
            f"train.loss ({listing(list(self.heads))})"
        )
        try:
            yield
        except UsageError as error:
            raise UsageError(f"{error}\n{text}") from error
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            error.add_note(text)
            raise

    def _others(self, outputs: Mapping[str, Tensor], result: Any, rows: int) -> dict[str, Tensor]:
        """Return outputs that have no loss, but one entry per row: reports show them."""
        if not isinstance(result, Mapping):
            return {}
        return {
            name: value for name, value in result.items() if name not in outputs and has_rows(value, rows)
        }

    def named_losses(self) -> dict[str, Tensor]:
        """Return the losses of each head, by row."""
        return {f"loss_{name}": losses for name, losses in self.row_losses.items()}

    def targets(self, batch: Batch) -> Nested:
        """Return the target of each head, as a tensor on the device; None without targets."""
        if batch.target is None:
            return None
        return map_arrays(self.tensor, self.by_head(batch.target, "a row has the target"))

    def _pairs(self, outputs: Mapping[str, Tensor], batch: Batch) -> dict[str, tuple[Tensor, Batch]]:
        if batch.target is None:
            raise RunFailed("the data has no target, but the losses need one")
        targets = self.by_head(batch.target, "a row has the target")
        return {name: (outputs[name], replace(batch, target=targets[name])) for name in self.heads}

    def by_head(self, given: Any, what: str) -> dict[str, Any]:
        """Return outputs or targets by head, in the order of the config."""
        names = list(self.heads)
        if isinstance(given, Mapping):
            if missing := [name for name in names if name not in given]:
                best = nearest(missing[0], [name for name in given if name not in names])
                hint = f"; did you mean {best}?" if best else ""
                raise UsageError(
                    f"train.loss names the head {missing[0]!r}, but {what} {listing(list(given))}{hint}"
                )
            return {name: given[name] for name in names}
        if isinstance(given, Sequence) and not isinstance(given, str | bytes):
            if len(given) != len(names):
                raise UsageError(
                    f"train.loss names {len(names)} heads ({listing(names)}), but {what} {len(given)} values"
                )
            return dict(zip(names, given, strict=True))
        raise UsageError(
            f"train.loss names {listing(names)}, so a model returns a dict or a tuple of outputs, and the "
            f"target of a row is a dict or a tuple; but {what} a {type(given).__name__}"
        )
