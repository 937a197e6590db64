"""From a batch to outputs and a loss, for every signature that a model may have.

A model may return

- an output: the loss comes from the config;
- `(outputs, loss)`, with one loss for the batch or one per row;
- `(outputs, None)`: it has updated itself.

Inputs are passed by position, or by name if they are a dict: an input without a parameter in `forward` is an
error unless it is declared unused. A parameter named `target` receives the target.

A loss has one value per row, unless it couples the rows of a batch (a contrastive or a ranking loss): then it
is measured per batch, and every row of a batch has the same weight.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

from manyfit.core.errors import RunFailed, UsageError
from manyfit.core.names import listing, nearest
from manyfit.data import Batch
from manyfit.data.nested import Nested, map_arrays, named_arrays
from manyfit.learn.row_outputs import PerRow
from manyfit.learn.torch.loss_hints import class_hint, describe_array, loss_hint
from manyfit.learn.torch.row_losses import is_separable, reduction_of, rowwise

log = logging.getLogger("manyfit")

REPORTED: Final = {
    torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
}  # fmt: skip
"""The dtypes that a report can hold."""
NEAR: Final = 1e-3
"""Relative tolerance between the mean over rows and the loss of the batch; 30 times as much in half
precision."""


def _to_nested(rows: Any) -> Tensor:
    """Return rows of different lengths as one nested tensor."""
    if any(not hasattr(row, "dtype") or row.dtype == object for row in rows.reshape(-1)):
        raise RunFailed("the data has text where a model needs numbers; read it as numbers, or leave it out")
    return torch.nested.nested_tensor([torch.from_numpy(row) for row in rows], layout=torch.jagged)


class TorchObjective:
    """The forward pass and the loss of a module."""

    def __init__(
        self,
        module: nn.Module,
        loss: Callable[..., Tensor] | None,
        device: torch.device,
        unused: Collection[str] = (),
        fed_by: str = "the data",
        unused_key: str = "data.unused",
    ) -> None:
        """`unused` are inputs that the model may ignore; `fed_by` is the data source in error messages."""
        self.loss = loss
        self.is_coupled: bool | None = False if loss is not None and is_separable(loss) else None
        """Whether the loss couples the rows of a batch; None while unknown."""
        self._unused = set(unused)
        self._fed_by = fed_by
        self._unused_key = unused_key
        self._matching: Any = None
        self._per_row = PerRow(has_rows)
        self._has_looked = False
        self.device = device
        self.on_cpu = device.type == "cpu"
        self.sums = loss is not None and reduction_of(loss) == "sum"
        self.row_loss = rowwise(loss) if loss is not None else None
        self._forms(module)

    def _forms(self, module: nn.Module) -> None:
        """Read the parameters of `forward`."""
        parameters = list(inspect.signature(module.forward).parameters.values())
        by_name = {p.name: p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
        self._open = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._names = set(by_name)
        self._required = {name for name, p in by_name.items() if p.default is p.empty}
        self._takes_target = "target" in by_name
        self._optional = [name for name in by_name if name not in self._required]

    def __call__(self, module: nn.Module, batch: Batch) -> tuple[Tensor, Tensor | None]:
        """Return the output and the loss to minimize; None if the model has updated itself."""
        result = self._call_model(module, batch)
        if isinstance(result, Tensor):
            return result, self._own_loss(result, batch)
        output, loss = self._split(module, result, len(batch))
        self.sums = False
        if loss is None:
            return output, None
        self._check_single(module)
        weight = self._weight(batch)
        if weight is not None and not loss.ndim:
            raise RunFailed(
                f"the data has weights, but {type(module).__name__} returns one loss for a batch; "
                "return one per row"
            )
        return output, loss if not loss.ndim else loss.mean() if weight is None else (loss * weight).mean()

    def rows(
        self, module: nn.Module, batch: Batch, with_loss: bool = True
    ) -> tuple[Tensor, Tensor | None, Nested]:
        """Return the main output, per-row losses (None without a loss), and all outputs."""
        result = self._call_model(module, batch)
        output, given = self._split(module, result, len(batch))
        every: Nested = output
        if not isinstance(result, Tensor):
            part = batch.part(0, len(batch) - 1)
            self._per_row.look(result[0], len(batch), lambda: self._call_model(module, part)[0])
            output, every = self.main_output(result[0], len(batch)), self._per_row.of(result[0], len(batch))
        return output, self._losses(module, batch, output, given) if with_loss else None, every

    def _losses(self, module: nn.Module, batch: Batch, output: Tensor, given: Tensor | None) -> Tensor | None:
        """Return one loss per row, or one for the batch if it couples rows; None without a loss."""
        if given is not None:
            self._check_single(module)
        if self.row_loss is not None and batch.target is not None:
            return self._compute_loss(output, self.target(batch))
        if given is None or given.shape == (len(batch),):
            return given
        if given.ndim:
            raise RunFailed(
                f"{type(module).__name__} must return one loss, or one for each of {len(batch)} rows, but "
                f"returned shape {tuple(given.shape)}"
            )
        if len(batch) == 1 and not self.is_coupled:
            return given.reshape(1)

        def alone() -> Tensor:
            parts = [batch.part(i, i + 1) for i in range(len(batch))]
            found = [self._split(module, self._call_model(module, part), 1)[1] for part in parts]
            return torch.stack([loss.reshape(()) for loss in found if loss is not None])

        return self._by_row(f"{type(module).__name__} returns one loss for a batch", given, alone)

    def _compute_loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each row, or of the batch if it couples rows."""
        assert self.row_loss is not None
        assert self.loss is not None
        if self.is_coupled is False or (self.is_coupled is None and len(output) < 2):
            return self._call_loss(self.row_loss, output, target)
        whole, row_loss = check_scalar(self._call_loss(self.loss, output, target)), self.row_loss
        return self._by_row(
            "train.loss returns one number for a batch", whole, lambda: row_loss(output, target)
        )

    def _by_row(self, what: str, whole: Tensor, alone: Callable[[], Tensor]) -> Tensor:
        """Return the loss of each row if these agree with the loss of the batch; otherwise the latter.

        Whether they agree is determined once, with the first batch whose loss is finite.
        """
        if self.is_coupled:
            return whole
        if self.is_coupled is not None:
            return alone()
        rows: Tensor | None = None
        try:
            rows = alone()
            reason = f"it is {float(whole):.4g}, but the mean over its rows is {float(rows.mean()):.4g}"
        except Exception as error:
            reason = f"it fails for a single row ({type(error).__name__}: {error})"
        if rows is not None and not bool(torch.isfinite(whole)):
            return rows  # a non-finite loss decides nothing: try again with the next batch
        self.is_coupled = rows is None or not agree(whole, rows)
        if self.is_coupled:
            log.warning(
                "%s, and %s: it couples rows, so it is measured per batch, and reports have no loss",
                what, reason,
            )  # fmt: skip
        else:
            log.warning(
                "%s, so rows are evaluated one by one; return one loss per row for faster evaluation", what
            )
        return whole if rows is None or self.is_coupled else rows

    def _check_single(self, module: nn.Module) -> None:
        if self.loss is not None:
            raise RunFailed(
                f"{type(module).__name__} returns its own loss, but train.loss is set as well; "
                "use only one of them: set train.loss: null, or return the output alone"
            )

    def target(self, batch: Batch) -> Tensor:
        """Return the target as a tensor on the device."""
        if batch.target is None:
            raise RunFailed("the data has no target, but the loss needs one")
        return self.tensor(batch.target)

    def targets(self, batch: Batch) -> Nested:
        """Return the target, or several, as tensors on the device; None without targets."""
        return map_arrays(self.tensor, batch.target)

    def named_losses(self) -> Mapping[str, Tensor]:
        """Return further per-row losses of the batch that `rows` was called with last, by name."""
        return {}

    def tensor(self, array: Any) -> Tensor:
        """Return an array or a tensor as a tensor on the device."""
        if isinstance(array, Tensor):
            found = array
        else:
            found = torch.from_numpy(array) if array.dtype.kind not in "OUS" else _to_nested(array)
        return found if self.on_cpu else found.to(self.device, non_blocking=True)

    def _own_loss(self, output: Tensor, batch: Batch) -> Tensor:
        if self.loss is None:
            raise RunFailed(
                "there is no loss: the model returned only an output, and train.loss is null; "
                "set train.loss, or return (outputs, loss)"
            )
        target = self.target(batch)
        if batch.weight is None:
            return check_scalar(self._call_loss(self.loss, output, target))
        assert self.row_loss is not None
        if self.is_coupled is None:
            with torch.no_grad():
                self._compute_loss(output, target)
        if self.is_coupled:
            raise UsageError(
                f"{self._fed_by} has sample weights, but train.loss couples the rows of a batch, so they "
                "cannot be weighted individually"
            )
        losses: Tensor = self._call_loss(self.row_loss, output, target) * self._weight(batch)
        return losses.sum() if self.sums else losses.mean()

    def _call_loss(self, loss: Callable[..., Tensor], output: Tensor, target: Tensor) -> Tensor:
        """Call a loss; errors describe its arguments."""
        if not self._has_looked:  # a GPU would only report a failed assertion, and later
            self._has_looked = True
            if isinstance(self.loss, nn.CrossEntropyLoss | nn.NLLLoss) and (
                hint := class_hint(output, target, self.loss.ignore_index)
            ):
                raise UsageError(
                    f"train.loss received {describe_array(output)} and {describe_array(target)}: {hint}"
                )
        try:
            return loss(output, target)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            weights = self.loss.weight if isinstance(self.loss, nn.CrossEntropyLoss | nn.NLLLoss) else None
            if weights is not None and output.ndim > 1 and len(weights) != output.shape[1]:
                raise UsageError(
                    f"train.class_weights has {len(weights)} numbers, but the model has {output.shape[1]} "
                    "outputs; give one number per class"
                ) from error
            error.add_note(
                f"train.loss received {describe_array(output)} and {describe_array(target)} as the target"
            )
            if hint := loss_hint(output, target):
                error.add_note(hint)
            raise

    def _weight(self, batch: Batch) -> Any:
        return None if batch.weight is None else self.tensor(batch.weight)

    def _call_model(self, module: nn.Module, batch: Batch) -> Any:
        try:
            return self._forward(module, batch)
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            given = batch.inputs
            named = (
                given
                if isinstance(given, dict)
                else dict(enumerate(given))
                if isinstance(given, tuple)
                else {}
            )
            arrays = {f"{name}: ": array for name, array in named.items()} or {"": given}
            text = ", ".join(f"{name}{describe_array(array)}" for name, array in arrays.items())
            error.add_note(f"{type(module).__name__}.forward received {text} from {self._fed_by}")
            if any("float64" in str(getattr(array, "dtype", "")) for array in arrays.values()):
                error.add_note(
                    "the data is float64, but the weights are float32: cast the data to np.float32 on reading"
                )
            raise

    def _forward(self, module: nn.Module, batch: Batch) -> Any:
        inputs = batch.inputs
        if isinstance(inputs, dict):
            return module(**self._match_inputs(module, inputs, batch))
        extra = {"target": self.target(batch)} if self._takes_target and batch.target is not None else {}
        if isinstance(inputs, tuple | list):
            return module(*(self.tensor(array) for array in inputs), **extra)
        return module(self.tensor(inputs), **extra) if extra else module(self.tensor(inputs))

    def select_inputs(self, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the inputs that `forward` has parameters for."""
        return {name: array for name, array in inputs.items() if self._open or name in self._names}

    def _match_inputs(self, module: nn.Module, inputs: Mapping[str, Any], batch: Batch) -> dict[str, Tensor]:
        given = self.select_inputs(inputs)
        if self._takes_target and "target" not in given and batch.target is not None:
            given["target"] = batch.target
        if self._matching != inputs.keys():
            self._check_names(module, inputs, given)
            self._matching = set(inputs)
        return {name: self.tensor(array) for name, array in given.items()}

    def _check_names(self, module: nn.Module, inputs: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """Check that every input has a parameter and every required parameter an input."""
        name, has = type(module).__name__, listing(list(inputs))
        free = [key for key in inputs if key not in given and key != "target"]
        if missing := sorted(self._required - set(given)):
            best = nearest(missing[0], free)
            hint = f"; did you mean {best}?" if best else ""
            raise UsageError(
                f"{name}.forward needs {listing(missing)}, but {self._fed_by} provides {has}{hint}"
            )
        if idle := sorted(self._unused - set(inputs)):
            log.warning("%s names %s, which the data does not provide", self._unused_key, listing(idle))
        if lost := [key for key in free if key not in self._unused]:
            best = nearest(lost[0], [key for key in self._optional if key not in given])
            hint = f"did you mean {best}? " if best else ""
            takes = listing(sorted(self._names)) or "nothing by name"
            raise UsageError(
                f"{self._fed_by} provides {listing(lost)}, but {name}.forward accepts {takes}; {hint}Rename "
                f"it, leave it out of the data, or set {self._unused_key}: [{', '.join(lost)}]"
            )

    def main_output(self, outputs: Nested, rows: int) -> Any:
        """Return the first output with one entry per row; if none has, the first of any length."""
        known = {name: value for name, value in named_arrays(outputs) if isinstance(value, Tensor)}
        fits = [value for name, value in known.items() if self._per_row.fits(name, value, rows)]
        fits += [value for value in known.values() if value.is_nested or value.ndim]
        return next(iter([*fits, *known.values()]), None)

    def _split(self, module: nn.Module, result: Any, rows: int) -> tuple[Tensor, Tensor | None]:
        """Return the main output and the loss that a model returned."""
        if isinstance(result, Tensor):
            return result, None
        name, returned = type(module).__name__, f"a {type(result).__name__}"
        if isinstance(result, tuple | list) and len(result) == 2:
            main, loss = self.main_output(result[0], rows), result[1]
            if main is not None and (loss is None or isinstance(loss, Tensor)):
                return main, loss
            returned = f"({type(result[0]).__name__}, {type(loss).__name__})"
        raise RunFailed(
            f"{name} must return a tensor, or (outputs, loss), where outputs are a tensor, or a dict or a "
            f"tuple of tensors; but it returned {returned}"
        )


def has_rows(value: Any, rows: int) -> bool:
    """Return whether a value is a tensor with one entry per row that a report can hold."""
    return (
        isinstance(value, Tensor)
        and not value.is_nested
        and value.layout is torch.strided
        and value.dtype in REPORTED
        and value.ndim > 0
        and len(value) == rows
    )


def check_scalar(loss: Any) -> Tensor:
    """Return a loss after checking that it is a single number."""
    if isinstance(loss, Tensor) and not loss.ndim:
        return loss
    shape = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
    raise RunFailed(
        f"the loss must return a tensor with one number, but returned {shape}: see train.loss (a loss of "
        "torch has reduction: mean or sum; your own must return the mean)"
    )


def agree(whole: Tensor, rows: Tensor) -> bool:
    """Return whether the losses of rows agree with that of their batch, as a mean or as a sum."""
    near = NEAR * (30 if rows.dtype in (torch.float16, torch.bfloat16) else 1)
    rows, total = rows.double(), float(whole)
    return any(abs(float(found) - total) <= near * abs(total) + 1e-6 for found in (rows.mean(), rows.sum()))
