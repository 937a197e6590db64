"""Functions that are called for each run of a group separately on the CPU: convolutions and batch norm.

Stacked, they compute the channels of all runs side by side, and how such a kernel rounds depends on their
number and on the place of a channel. On the CPU, they are hardly faster stacked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from torch.overrides import TorchFunctionMode

SPLIT: Final = frozenset(
    {F.conv1d, F.conv2d, F.conv3d, F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d, F.batch_norm}
)


class PerRun(TorchFunctionMode):
    """While it is active inside `vmap`, some functions are called for each run separately."""

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Split a call, or pass it on."""
        if func not in SPLIT:
            return func(*args, **(kwargs or {}))
        given: dict[Any, Any] = {**dict(enumerate(args)), **(kwargs or {})}
        tensors = {name: value for name, value in given.items() if isinstance(value, Tensor)}

        def call(*values: Tensor) -> Any:
            now = {**given, **dict(zip(tensors, values, strict=True))}
            by_position = [now.pop(i) for i in range(len(args))]
            return func(*by_position, **now)

        return _Split.apply(call, *tensors.values())  # type: ignore[no-untyped-call]


class _Split(torch.autograd.Function):
    """A function of one run, called for each. Its gradient is that of these calls."""

    @staticmethod
    def forward(call: Callable[..., Any], *values: Any) -> Any:
        """Call the function without a dimension of runs."""
        return call(*values)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Keep nothing."""

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Refuse: parameters always have a dimension of runs."""
        raise NotImplementedError("a convolution or a batch norm without parameters of the runs")

    @staticmethod
    def vmap(info: Any, dims: Sequence[Any], call: Callable[..., Any], *values: Any) -> tuple[Tensor, int]:
        """Call the function for each run."""
        columns = [
            [value] * info.batch_size if dim is None else _lay_out(value.movedim(dim, 0)).unbind(0)
            for value, dim in zip(values, dims[1:], strict=True)
        ]
        found = torch.stack([call(*each) for each in zip(*columns, strict=True)])
        return _SameLayout.apply(found), 0  # type: ignore[no-untyped-call]


class _SameLayout(torch.autograd.Function):
    """The identity, whose gradient has the usual layout: how a kernel rounds also depends on that."""

    @staticmethod
    def forward(ctx: Any, value: Tensor) -> Tensor:
        """Return the value."""
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return the gradient in the usual layout."""
        return _lay_out(gradients[0])


def _lay_out(value: Tensor) -> Tensor:
    """Return a tensor in one piece, also with the usual strides for dimensions of size 1."""
    return value.reshape(-1).view(value.shape)
