"""What `manyfit profile` times in steps of modules, and the trace of their operators."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Final

import torch
from torch._C._autograd import DeviceType
from torch.optim.swa_utils import AveragedModel

from manyfit.core.stopwatch import TimedCall
from manyfit.data.walk import Walk
from manyfit.learn.torch.fused import step as fused_step
from manyfit.learn.torch.fused.launch.feed import RowFeed
from manyfit.learn.torch.fused.launch.program import Program
from manyfit.learn.torch.fused.launch.slots import Slots
from manyfit.learn.torch.fused.update import StackedUpdate
from manyfit.learn.torch.heads import HeadsObjective
from manyfit.learn.torch.learner import TorchLearner
from manyfit.learn.torch.objective import TorchObjective
from manyfit.learn.torch.update import Update

FORWARD, BACKWARD, OPTIMIZER, SUMS = "forward and loss", "backward", "optimizer", "rates and sums"
COPIES, LAUNCHED = "copies to the device", "launched steps"
PLACES: Final[Sequence[TimedCall]] = (
    TimedCall(TorchObjective, "tensor", COPIES),
    TimedCall(TorchObjective, "__call__", FORWARD),
    TimedCall(HeadsObjective, "__call__", FORWARD),
    TimedCall(torch.autograd, "backward", BACKWARD),
    TimedCall(Update, "backward", BACKWARD),
    TimedCall(Update, "zero", OPTIMIZER),
    TimedCall(Update, "step", OPTIMIZER),
    TimedCall(Update, "apply", OPTIMIZER),
    TimedCall(AveragedModel, "update_parameters", OPTIMIZER),
    TimedCall(TorchLearner, "_count", SUMS),
    TimedCall(fused_step, "compute_losses", FORWARD),
    TimedCall(torch.autograd, "grad", BACKWARD),
    TimedCall(StackedUpdate, "step", OPTIMIZER),
    TimedCall(StackedUpdate, "apply", OPTIMIZER),
    TimedCall(Slots, "fill", COPIES),
    TimedCall(Program, "run", LAUNCHED),
    TimedCall(Walk, "__next__", "waiting for data"),
    TimedCall(RowFeed, "read", "waiting for data"),
)


class OperatorTrace:
    """A trace of the operators and the kernels of some steps."""

    def __init__(self, device: torch.device) -> None:
        self.sees_gpu = device.type == "cuda"
        kinds = [torch.profiler.ProfilerActivity.CPU]
        if self.sees_gpu:
            kinds.append(torch.profiler.ProfilerActivity.CUDA)
        self._profiler: Any = torch.profiler.profile(activities=kinds)

    def __enter__(self) -> OperatorTrace:
        was_set = "KINETO_LOG_LEVEL" in os.environ
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # it prints when it begins and ends
        try:
            self._profiler.__enter__()
        finally:
            if not was_set:
                del os.environ["KINETO_LOG_LEVEL"]
        return self

    def __exit__(self, *error: Any) -> None:
        self._profiler.__exit__(*error)

    def mark(self, phase: str) -> AbstractContextManager[object]:
        """Mark a phase."""
        return torch.profiler.record_function(phase)

    def wait(self) -> None:
        """Wait for the GPU, but not while a graph is captured."""
        if self.sees_gpu and not torch.cuda.is_current_stream_capturing():
            torch.cuda.synchronize()

    def busy(self) -> float:
        """Return the seconds in which the GPU has computed."""
        cuda = DeviceType.CUDA
        found = [each.time_range for each in self._profiler.events() or () if each.device_type == cuda]
        busy, last = 0.0, float("-inf")
        for each in sorted(found, key=lambda each: each.start):
            busy += max(0.0, each.end - max(each.start, last))
            last = max(last, each.end)
        return busy / 1e6

    def write(self, file: Path) -> None:
        """Write the trace in the format of Chrome's trace viewer, which Perfetto reads, too."""
        self._profiler.export_chrome_trace(str(file))
