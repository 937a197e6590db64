"""A wrapper for custom executors, whose mistakes are reported by name and not as those of manyfit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, TypeVar

from manyfit.core.errors import ManyfitError, RunFailed
from manyfit.core.tracebacks import user_frame
from manyfit.study.executors.base import Executor
from manyfit.study.work.unit_watch import Tell
from manyfit.study.work.units import Outcome, Unit

T = TypeVar("T")


class Guarded(Executor):
    """A wrapper that passes calls on to an executor and checks what it returns."""

    def __init__(self, inner: Executor) -> None:
        self._inner = inner
        self._name = type(inner).__name__
        self._open: set[str] = set()
        if type(inner.slots) is not int or inner.slots < 1:
            raise RunFailed(f"the executor {self._name} must have at least one slot, not {inner.slots!r}")

    @property
    def slots(self) -> int:  # type: ignore[override]
        """As declared by the executor."""
        return self._inner.slots

    @property
    def places(self) -> Sequence[str]:  # type: ignore[override]
        """As declared by the executor."""
        return self._inner.places

    @property
    def speeds(self) -> Mapping[str, float]:  # type: ignore[override]
        """As declared by the executor."""
        return self._inner.speeds

    @property
    def replicas(self) -> int:  # type: ignore[override]
        """As declared by the executor."""
        return self._inner.replicas

    @property
    def holds(self) -> Mapping[str, Sequence[int]]:  # type: ignore[override]
        """As declared by the executor."""
        return self._inner.holds

    @property
    def travels(self) -> bool:  # type: ignore[override]
        """As declared by the executor."""
        return self._inner.travels

    @property
    def isolates(self) -> bool:  # type: ignore[override]
        """As declared by the executor."""
        return self._inner.isolates

    @property
    def keeps_folders(self) -> bool:  # type: ignore[override]
        """As declared by the executor."""
        return self._inner.keeps_folders

    @property
    def tell(self) -> Tell:
        """The listener for signs of life."""
        return self._inner.tell

    @tell.setter
    def tell(self, tell: Tell) -> None:
        self._inner.tell = tell

    def submit(self, unit: Unit) -> None:
        """Pass a unit on."""
        self._call("submit", lambda: self._inner.submit(unit))
        self._open |= {trial.id for trial in unit.trials}

    def wait(self, timeout: float | None = None, wake: Sequence[int] = ()) -> list[Outcome]:
        """Return outcomes of submitted trials, each exactly once."""
        found: Any = self._call("wait", lambda: self._inner.wait(timeout, wake))
        if not isinstance(found, list) or not all(isinstance(each, Outcome) for each in found):
            raise RunFailed(
                f"the executor {self._name}.wait must return a list of outcomes, not {found!r:.80}"
            )
        for outcome in found:
            if outcome.trial not in self._open:
                raise RunFailed(
                    f"the executor {self._name} returned an outcome for {outcome.trial!r}, which was not "
                    "submitted, or which already has an outcome"
                )
            self._open.remove(outcome.trial)
        return found

    def interrupt(self, trials: Collection[str] | None = None) -> None:
        """Pass the request on."""
        self._call("interrupt", lambda: self._inner.interrupt(trials))

    def resize(self, workers: int) -> None:
        """Pass the request on."""
        self._call("resize", lambda: self._inner.resize(workers))

    def close(self) -> None:
        """Close the executor."""
        self._call("close", self._inner.close)

    def now(self) -> float:
        """Return the seconds of its clock."""
        return self._inner.now()

    def describe(self) -> dict[str, object]:
        """Return its description."""
        return self._inner.describe()

    def _call(self, method: str, act: Callable[[], T]) -> T:
        try:
            return act()
        except ManyfitError:
            raise
        except Exception as error:
            text = f"the executor {self._name}.{method} failed: {type(error).__name__}: {error}"
            raise RunFailed(f"{text}\n  at {user_frame(error)}") from error
