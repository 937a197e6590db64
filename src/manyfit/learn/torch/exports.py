"""PyTorch modules as `torch.export` programs and as ONNX models."""

from __future__ import annotations

import copy
import inspect
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from manyfit.core.errors import UsageError
from manyfit.core.lazy import import_optional
from manyfit.data import Batch
from manyfit.learn.exporting import compare_outputs
from manyfit.learn.torch.learner import TorchLearner

log = logging.getLogger("manyfit")


def write_program(learner: TorchLearner, batch: Batch, file: Path) -> None:
    """Write a `torch.export` program. manyfit never loads one, since its loader unpickles."""
    module = copy.deepcopy(learner.evaluated).eval().cpu()
    args, named = call_arguments(learner, batch)
    try:
        program = torch.export.export(module, args, named, dynamic_shapes=_dynamic(args, named))
    except Exception:  # of any type: not every model supports several dynamic dimensions
        log.info("only the number of rows is dynamic in the exported program", exc_info=True)
        program = torch.export.export(module, args, named, dynamic_shapes=_dynamic(args, named, rows=True))
    compare_outputs(module(*args, **named), program.module()(*args, **named), "the exported program")
    torch.export.save(program, file)


def write_onnx(learner: TorchLearner, batch: Batch, file: Path) -> None:
    """Write an ONNX model, and check it with onnxruntime."""
    import_optional("onnx", "onnx")
    import_optional("onnxscript", "onnx")
    runtime = import_optional("onnxruntime", "onnx")
    module = copy.deepcopy(learner.evaluated).eval().cpu()
    args, named = call_arguments(learner, batch)
    outputs = output_names(module(*args, **named))
    inputs = list(inspect.signature(module.forward).parameters)[: len(args)] if not named else list(named)

    def convert(rows: bool) -> None:
        torch.onnx.export(
            module, args, str(file), kwargs=named, dynamo=True, verbose=False, external_data=False,
            dynamic_shapes=_dynamic(args, named, rows), input_names=inputs, output_names=outputs,
        )  # fmt: skip

    try:
        convert(rows=False)
    except Exception:  # of any type: not every model supports several dynamic dimensions
        log.info("only the number of rows is dynamic in the ONNX model", exc_info=True)
        convert(rows=True)
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [given.name for given in session.get_inputs()]
    given = {**dict(zip(names, args, strict=False)), **named}
    found = session.run(None, {n: given[n].numpy() for n in names})
    compare_outputs(module(*args, **named), found, "the ONNX model", loose=True)


def output_names(output: Any) -> list[str]:
    """Return the names of a model's outputs: its own, or output, or output_0, output_1 …"""
    if isinstance(output, tuple | list) and len(output) == 2 and output[1] is None:
        output = output[0]
    if isinstance(output, Mapping):
        return [str(name) for name, value in output.items() if isinstance(value, Tensor)]
    if isinstance(output, tuple | list):
        return [f"output_{i}" for i, value in enumerate(output) if isinstance(value, Tensor)]
    return ["output"]


def call_arguments(learner: TorchLearner, batch: Batch) -> tuple[tuple[Tensor, ...], dict[str, Tensor]]:
    """Return the inputs of a batch as positional and keyword arguments of the model."""
    inputs = batch.inputs
    if not getattr(learner.predict(batch), "size", 1):
        raise UsageError("the run has no model that can be called with a batch: nothing to export")
    if isinstance(inputs, dict):
        taken = learner.objective.select_inputs(inputs)
        return (), {name: torch.as_tensor(np.asarray(array)) for name, array in taken.items()}
    given = inputs if isinstance(inputs, tuple) else (inputs,)
    return tuple(torch.as_tensor(np.asarray(array)) for array in given), {}


def _dynamic(args: tuple[Tensor, ...], named: Mapping[str, Tensor], rows: bool = False) -> Any:
    """Return the dynamic dimensions: rows, and with `rows=False` also all others that the model allows."""

    def free(tensor: Tensor) -> dict[int, Any]:
        sizes = enumerate(tensor.shape)  # a size of 1 counts as static
        return {i: torch.export.Dim.AUTO for i, size in sizes if i == 0 or (size > 1 and not rows)}

    return {name: free(tensor) for name, tensor in named.items()} if named else tuple(map(free, args))
