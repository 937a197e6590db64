"""Evaluation of a batch: outputs, metrics and per-row losses."""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import torch

from manyfit.core.lazy import import_optional
from manyfit.core.tracebacks import explain_error
from manyfit.data.nested import Nested, map_arrays, named_arrays

PER_LEARNER: Final = ("measure_function.", "TensorFlowTrainer.make_")
"""Parts of the names of TensorFlow functions that exist once per learner."""


def measure_function(
    backend: str, model: Any, row_loss: Callable[[Any, Any], Any] | None
) -> Callable[[Any, Any, Any], Any]:
    """Return a function of a batch that updates the metrics and returns (output, per-row losses or None)."""

    def measure(inputs: Any, target: Any, weight: Any) -> Any:
        if target is None:
            return model.predict_step((inputs,)), None
        with outputs_of(model) as seen:
            model.test_step((inputs, target, weight))
        output = seen[-1] if seen else model.predict_step((inputs,))
        return output, None if row_loss is None else row_loss(target, output)

    if backend == "tensorflow":
        tf: Any = import_optional("tensorflow", "tensorflow")

        if getattr(model, "run_eagerly", False):
            return measure
        logging.getLogger("tensorflow").addFilter(is_not_provoked)
        graph = tf.autograph.experimental.do_not_convert(measure)
        found: Callable[[Any, Any, Any], Any] = tf.function(graph, reduce_retracing=True)
        return found
    return torch.no_grad()(measure)


@contextmanager
def outputs_of(model: Any) -> Iterator[list[Any]]:
    """Record the outputs that `test_step`, also a custom one, passes to the metrics."""
    seen: list[Any] = []
    original = model.compute_metrics

    def compute_metrics(x: Any, y: Any, y_pred: Any, sample_weight: Any = None, **more: Any) -> Any:
        seen.append(y_pred)
        return original(x, y, y_pred, sample_weight=sample_weight, **more)

    model.__dict__["compute_metrics"] = compute_metrics
    try:
        yield seen
    finally:
        del model.__dict__["compute_metrics"]


def has_entry_per_row(value: Any, rows: int) -> bool:
    """Return whether an output has one entry per row."""
    return value is not None and bool(len(value.shape)) and value.shape[0] == rows


def is_not_provoked(record: logging.LogRecord) -> bool:
    """Return whether a log record is not a retracing warning that manyfit itself causes.

    TensorFlow mistakes the functions of several learners for one function that is retraced repeatedly.
    """
    text = record.getMessage()
    return "retracing" not in text or not any(name in text for name in PER_LEARNER)


def row_loss(keras: Any, model: Any) -> Callable[[Any, Any], Any] | None:
    """Return the compiled loss without reduction; None for a model with several losses."""
    given = model.loss
    if given is None or isinstance(given, dict | list | tuple):
        return None
    loss = keras.losses.get(given)
    if isinstance(loss, keras.losses.Loss):
        loss = copy.copy(loss)
        loss.reduction = None

    def rows(target: Any, output: Any) -> Any:
        if isinstance(target, dict | list | tuple) or isinstance(output, dict | list | tuple):
            return None
        if len(target.shape) == len(output.shape) - 1 and output.shape[-1] == 1:
            target = keras.ops.expand_dims(target, -1)
        values = loss(target, output)
        if len(values.shape) == 0:
            return None  # a custom function that has already reduced the rows
        return keras.ops.mean(keras.ops.reshape(values, (keras.ops.shape(values)[0], -1)), axis=-1)

    return rows


def arrays_of(
    numpy: Callable[[Any], Any], output: Any, target: Any
) -> Callable[[], tuple[Nested, Nested]] | None:
    """Return a function that returns all outputs and targets as arrays; None if there is one of each."""
    if max(len(list(named_arrays(output))), len(list(named_arrays(target)))) < 2:
        return None
    return lambda: (
        map_arrays(lambda value: numpy(value)[None], output),
        map_arrays(lambda value: np.asarray(value)[None], target),
    )


def clean_message(error: Exception) -> str:
    """Return the message of a Keras error without its colors and its list of arguments."""
    lines = [line for line in re.sub(r"\x1b\[\d+m", "", explain_error(error)).splitlines() if line.strip()]
    return " ".join(lines[:2])[:400]
