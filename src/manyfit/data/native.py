"""Native batches: batches of a source in the format of a framework, without NumPy."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class NativeBatches(Protocol):
    """Batches that a framework can also read directly, without a conversion to NumPy.

    Both ways yield the same rows in the same order, and can be mixed.
    """

    @property
    def framework(self) -> str:
        """The framework whose iterator `native` returns, such as `tensorflow`; empty if there is none."""
        ...

    def native(self, most: int) -> tuple[Any, int]:
        """Return an iterator of the framework and the number of batches to take from it, at most `most`."""
        ...


def native_of(batches: object, framework: str) -> NativeBatches | None:
    """Return the batches if the framework can read them directly, else None."""
    if isinstance(batches, NativeBatches) and batches.framework == framework:
        return batches
    return None
