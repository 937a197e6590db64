"""What a source may offer beside batches of NumPy arrays: batches in the form of a framework."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class NativeBatches(Protocol):
    """Batches that a framework can also read itself, without a detour over NumPy.

    Both ways give the same rows in the same order, and can be mixed.
    """

    @property
    def framework(self) -> str:
        """The framework whose iterator `native` returns, such as `tensorflow`; empty if there is none."""
        ...

    def native(self, most: int) -> tuple[Any, int]:
        """Return an iterator of the framework, and how many batches may be taken from it, at most `most`."""
        ...


def native_of(batches: object, framework: str) -> NativeBatches | None:
    """Return batches that a framework can read itself; None if it cannot."""
    if isinstance(batches, NativeBatches) and batches.framework == framework:
        return batches
    return None
