"""The names of a model's inputs and outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from manyfit.core.errors import UsageError
from manyfit.core.names import listing


def check_input_names(model: Any, inputs: Any, unused: Collection[str], fed_by: str) -> None:
    """Raise an error for named inputs that the model does not have: Keras ignores them silently."""
    known = [str(each.name) for each in getattr(model, "inputs", None) or ()]
    if not known or not isinstance(inputs, dict):
        return
    lost = [name for name in inputs if name not in known and name not in unused]
    if lost and len(inputs) > len(known):
        raise UsageError(
            f"{fed_by} provides {listing(lost)}, but the model accepts {listing(known)}; rename it, "
            f"leave it out of the data, or declare it: unused: [{', '.join(lost)}]"
        )


def name_outputs(model: Any, output: Any, has_names: bool) -> Any:
    """Return outputs by name if the targets are named; outputs with a loss come first."""
    names = getattr(model, "output_names", None) or ()
    if isinstance(output, tuple | list) and has_names and len(names) == len(output):
        output = dict(zip(names, output, strict=True))
    losses = model.loss if isinstance(model.loss, Mapping) else {}
    if isinstance(output, Mapping):  # the first one is the main output
        return dict(sorted(output.items(), key=lambda item: bool(losses) and losses.get(item[0]) is None))
    return output
