"""Evaluation functions of one row, called for many rows at once where the results agree."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from manyfit.config.typed.roles import METRIC
from manyfit.core.errors import RunFailed, UsageError
from manyfit.core.names import listing, nearest
from manyfit.core.quiet import mute
from manyfit.core.tracebacks import user_frame
from manyfit.data.nested import Nested, count_rows, map_arrays, pair_outputs

log = logging.getLogger("manyfit")

PROBED = 8
"""Rows on which a function is called both ways before it is called on whole batches."""

SLOW = 5_000
"""Rows per second below which a function that is called row by row causes a warning."""

PointFunction = Callable[[Any, Any], Any]
Arrays = npt.NDArray[Any]
F = TypeVar("F", bound=Callable[..., Any])


def batched(function: F) -> F:
    """Mark an evaluation function as one that accepts many rows and returns one number per row."""
    function.batched = True  # type: ignore[attr-defined]
    return function


@dataclass(frozen=True)
class ArrayKind:
    """The kind of array that functions are called with: NumPy arrays or tensors."""

    name: str
    make: Callable[[Arrays], Any]


def _torch(values: Arrays) -> Any:
    import torch

    return torch.from_numpy(np.ascontiguousarray(values) if values.flags.writeable else values.copy())


def _tensorflow(values: Arrays) -> Any:
    return sys.modules["tensorflow"].convert_to_tensor(values)


NUMPY: Final = ArrayKind("numpy", lambda values: values)
TORCH: Final = ArrayKind("torch", _torch)
TENSORFLOW: Final = ArrayKind("tensorflow", _tensorflow)
ANY_KIND: Final = (NUMPY, TENSORFLOW, TORCH)


class Evaluator:
    """Evaluates functions of one row on every row of a batch.

    A function is called for a whole batch if that works and agrees with calls row by row: directly, by
    `torch.func.vmap`, or by `tf.vectorized_map`. Otherwise it is called row by row, and its speed is logged.

    `functions` are called with torch tensors, as `(output, target)`. `points` are called with NumPy arrays,
    or the kind of tensor that they work with, as `(y_true, y_pred)`; they may also be names of metrics. If a
    model has several outputs, a function receives all of them, and a named metric measures the first.

    >>> evaluator = Evaluator({"error": lambda output, target: (output - target).abs().max()})
    >>> evaluator(np.ones((2, 3)), np.zeros((2, 3)))["error"].tolist()
    [1.0, 1.0]
    """

    def __init__(
        self,
        functions: Mapping[str, PointFunction],
        points: Mapping[str, PointFunction | str] | None = None,
    ) -> None:
        self.functions: dict[str, PointFunction] = dict(functions)
        self.points = list(points or {})
        self.named = [name for name, given in (points or {}).items() if isinstance(given, str)]
        """The functions given by name, which measure the first of several outputs."""
        self._kinds: dict[str, Sequence[ArrayKind]] = {name: [TORCH] for name in functions}
        for name, given in (points or {}).items():
            function, kinds = find_function(given) if isinstance(given, str) else (given, ANY_KIND)
            if not callable(function):
                raise UsageError(f"the evaluation function {name!r} must be callable, but is {given!r:.60}")
            self.functions[name] = _swap_arguments(function)
            self._kinds[name] = kinds
        self._ways: dict[str, Callable[[Nested, Nested], Any]] = {}
        self._alone: dict[str, ArrayKind] = {}
        """Functions that are called row by row."""
        self._undecided: set[str] = set()
        """Functions of `_alone` that are probed again with the next rows."""
        self._known: dict[str, tuple[npt.NDArray[np.float64], dict[int, Exception]]] = {}
        """Results for the first rows, from probing."""
        self.failures: list[tuple[str, int, str]] = []
        """Failures of the last call: name of the function, row, and error message."""
        self._trusted: dict[str, ArrayKind] = {}
        """Functions that are called for many rows at once because the results have agreed so far."""

    def __call__(self, output: Nested, target: Nested) -> dict[str, npt.NDArray[np.float64]]:
        """Return one number per row and function; NaN where a function fails, which `failures` records."""
        self.failures = []
        (_, *main), *_ = pair_outputs(output, target)
        with mute("tensorflow"):  # it warns about tracing, which happens internally here
            return {
                name: self._values(name, *(main if name in self.named else (output, target)))
                for name in self.functions
            }

    def _values(self, name: str, output: Nested, target: Nested) -> npt.NDArray[np.float64]:
        if name not in self._ways and name not in self._alone:
            self._probe(name, output, target)
        if name in self._alone:
            return self._row_by_row(name, output, target)
        try:
            found = to_numbers(self._ways[name](output, target))
        except Exception as error:
            if name not in self._trusted:
                raise _function_error(name, output, target, error) from error
            found = None  # it fails on some row; calling it row by row shows on which
        rows = count_rows(output)
        if name in self._trusted and not self._still_agrees(name, found, output, target):
            log.warning("%r returns other values for many rows at once: it is called row by row", name)
            self._alone[name] = self._trusted.pop(name)
            return self._row_by_row(name, output, target)
        if found is None or found.shape != (rows,):
            shape = "something else" if found is None else f"shape {found.shape}"
            raise RunFailed(
                f"the function {name!r} must return one number for each of {rows} rows, but returned {shape}"
            )
        return found

    def _still_agrees(self, name: str, found: Any, output: Nested, target: Nested) -> bool:
        """Return whether a function agrees on a sample of rows, spread over all of them."""
        rows = count_rows(output)
        if found is None or found.shape != (rows,):
            return False
        some = np.unique(np.linspace(0, rows - 1, PROBED).astype(int))
        few = (at(value, some) for value in (output, target))
        alone, errors = one_by_one(self.functions[name], self._trusted[name], *few)
        return not errors and bool(np.allclose(found[some], alone, rtol=1e-5, atol=1e-7, equal_nan=True))

    def _row_by_row(self, name: str, output: Nested, target: Nested) -> npt.NDArray[np.float64]:
        """Call a function row by row; results from probing are reused."""
        known, errors = self._known.pop(name, (np.zeros(0), {}))
        done, function, kind = len(known), self.functions[name], self._alone[name]
        rest, more = one_by_one(function, kind, at(output, slice(done, None)), at(target, slice(done, None)))
        errors |= {done + i: error for i, error in more.items()}
        if len(errors) == count_rows(output) > 1:
            raise _function_error(name, output, target, errors[0]) from errors[0]
        for i, error in sorted(errors.items()):
            self.failures.append((name, i, f"{type(error).__name__}: {error} at {user_frame(error)}"))
        if name in self._undecided:
            self._undecided.discard(name)
            del self._alone[name]
        return np.concatenate([known, rest])

    def _probe(self, name: str, output: Nested, target: Nested) -> None:
        """Try a function on a few rows in every way, and choose the first way that agrees."""
        function = self.functions[name]
        few, some = at(output, slice(PROBED)), at(target, slice(PROBED))
        if getattr(function, "batched", False):
            self._ways[name] = self._for_batches(name, few, some)
            return
        kind, alone, errors, rate = self._try_kinds(name, few, some)
        self._alone[name], self._known[name] = kind, (alone, errors)
        if len(alone) < 2 or (alone == alone[0]).all():
            self._undecided.add(name)  # equal results prove nothing: probe again with later rows
            return
        reason = "it returns other values for many rows at once"
        for way in ways(function, kind):
            try:
                together = to_numbers(way(few, some))
            except Exception as error:  # of any type; calling the function row by row still works
                reason = str(error).strip().rpartition("\n")[2].strip()[:120] or type(error).__name__
                continue
            if (
                together is not None
                and together.shape == alone.shape
                and np.allclose(together, alone, rtol=1e-5, atol=1e-7, equal_nan=True)
            ):
                self._trusted[name], self._ways[name] = kind, way
                del self._alone[name], self._known[name]
                return
        level = logging.WARNING if rate < SLOW else logging.INFO
        log.log(level, "%r is called row by row, about %.0f rows/s: %s", name, rate, reason)

    def _for_batches(self, name: str, few: Nested, some: Nested) -> Callable[[Nested, Nested], Any]:
        function, errors = self.functions[name], []
        for kind in self._usable(name):
            try:
                to_numbers(function(map_arrays(kind.make, few), map_arrays(kind.make, some)))
            except Exception as error:  # raised below if no kind of array works
                errors.append(error)
                continue
            return lambda output, target, kind=kind: function(  # type: ignore[misc]
                map_arrays(kind.make, output), map_arrays(kind.make, target)
            )
        raise _function_error(name, few, some, errors[0]) from errors[0]

    def _try_kinds(
        self, name: str, few: Nested, some: Nested
    ) -> tuple[ArrayKind, npt.NDArray[np.float64], dict[int, Exception], float]:
        """Return the best kind of array for a function, its results, its errors, and rows per second."""
        best: Any = None
        for kind in self._usable(name):
            began = time.perf_counter()
            alone, errors = one_by_one(self.functions[name], kind, few, some)
            found = kind, alone, errors, len(alone) / max(time.perf_counter() - began, 1e-9)
            if best is None or len(errors) < len(best[2]):
                best = found
            if not errors:
                break
        first = next(iter(best[2].values()), None)
        if first is not None and len(best[2]) == len(best[1]):
            raise _function_error(name, at(few, 0), at(some, 0), first) from first
        return best  # type: ignore[no-any-return]

    def _usable(self, name: str) -> list[ArrayKind]:
        return [k for k in self._kinds[name] if k is not TENSORFLOW or "tensorflow" in sys.modules]


def at(value: Nested, rows: Any) -> Nested:
    """Return the given rows, or one row, of every array."""
    return map_arrays(lambda array: array[rows], value)


def ways(function: PointFunction, kind: ArrayKind) -> Iterator[Callable[[Nested, Nested], Any]]:
    """Yield ways to call a function of one row for many rows at once, the likeliest first."""

    def direct(output: Nested, target: Nested) -> Any:
        return function(map_arrays(kind.make, output), map_arrays(kind.make, target))

    if kind is TORCH:
        import torch

        together = torch.func.vmap(function, randomness="different")
        yield lambda output, target: together(map_arrays(_torch, output), map_arrays(_torch, target))
    yield direct
    tensorflow = sys.modules.get("tensorflow")
    if kind is not TORCH and tensorflow is not None:
        tf: Any = tensorflow

        def each(output: Any, target: Any) -> Any:
            return tf.vectorized_map(lambda pair: function(pair[0], pair[1]), (output, target))

        graph = tf.function(each, reduce_retracing=True)
        make = tf.convert_to_tensor
        yield lambda output, target: graph(map_arrays(make, output), map_arrays(make, target))


def one_by_one(
    function: PointFunction, kind: ArrayKind, output: Nested, target: Nested
) -> tuple[npt.NDArray[np.float64], dict[int, Exception]]:
    """Call a function row by row; return its values, NaN where it fails, and the errors by row."""
    rows = count_rows(output)
    values, errors = np.full(rows, np.nan), dict[int, Exception]()
    try:
        outputs, targets = map_arrays(kind.make, output), map_arrays(kind.make, target)
    except Exception as error:
        return values, dict.fromkeys(range(rows), error)
    for i in range(rows):
        try:
            values[i] = float(function(at(outputs, i), at(targets, i)))
        except Exception as error:  # reported for this row
            errors[i] = error
    return values, errors


def _function_error(name: str, output: Nested, target: Nested, error: Exception) -> RunFailed:
    shapes = f"output {map_arrays(np.shape, output)}, target {map_arrays(np.shape, target)}"
    return RunFailed(
        f"the function {name!r} must return one number per row, but failed on {shapes}: "
        f"{type(error).__name__}: {error}\n  at {user_frame(error)}"
    )


def to_numbers(values: Any) -> npt.NDArray[np.float64] | None:
    """Return the result of a function for many rows as numbers; None if it is not numeric."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
    found = np.asarray(values)
    return found.astype(np.float64) if found.dtype.kind in "biuf" else None


def _swap_arguments(function: PointFunction) -> PointFunction:
    """Return a function of (y_true, y_pred) as one of (output, target)."""

    def turned(output: Any, target: Any) -> Any:
        return function(target, output)

    turned.batched = getattr(function, "batched", False)  # type: ignore[attr-defined]
    return turned


def find_function(name: str) -> tuple[PointFunction, Sequence[ArrayKind]]:
    """Return the manyfit metric, or the Keras loss or metric, of a name: one number per row of a batch."""
    from manyfit.learn import metrics

    keras: Any = sys.modules.get("keras")
    if name in METRIC.short and not (
        keras is not None and name == "binary_accuracy"
    ):  # Keras' expects probabilities
        own = getattr(metrics, METRIC.short[name].rpartition(".")[2])
        return batched(lambda y_true, y_pred: own(y_pred, y_true)), [TORCH]
    known = list(METRIC.short)
    if keras is not None:
        function = getattr(keras.losses, name, None) or getattr(keras.metrics, name, None)
        if callable(function) and not isinstance(function, type):

            def of_rows(y_true: Any, y_pred: Any) -> Any:
                is_column = np.ndim(y_pred) == np.ndim(y_true) + 1 and np.shape(y_pred)[-1] == 1
                y_true = np.expand_dims(y_true, -1) if is_column else y_true
                return keras.ops.convert_to_numpy(function(y_true, y_pred))

            return batched(of_rows), [NUMPY]
        known += [n for n in dir(keras.losses) if n.islower() and callable(getattr(keras.losses, n))]
    best = nearest(name, known)
    hint = f"did you mean {best!r}?" if best else f"there are {listing(known)}"
    raise UsageError(f"there is no metric named {name!r}; {hint}")
