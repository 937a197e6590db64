"""The state of an object, found by looking at it.

Found are, in attributes, lists, dicts and plain objects of the user, each once:

- everything with `state_dict` and `load_state_dict`: modules, optimizers, schedules, scalers, averages;
- random generators of torch, Python and NumPy;
- plain values, tensors, arrays and deques that have changed since the object was made. A value that has not
  changed is not stored, so that a new value from the config is not overwritten by an old checkpoint.

Everything else that may hold state is named by `lost`: it is not kept.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from manyfit.learn.found_state.generators import GENERATORS, load_object, read_object
from manyfit.learn.found_state.survey import Survey, Surveyor, join, locate
from manyfit.learn.found_state.values import copy_tensors, decode_value, is_same, put


class FoundState:
    """The state of one object: what it was when the object was made, and what it is now."""

    def __init__(
        self, root: Any, kept: Collection[Any] = (), hidden: Collection[str] = (), modes: bool = False
    ) -> None:
        """`kept` are objects whose state is stored elsewhere; `hidden` are attributes of manyfit.

        With `modes`, also keep gradients, frozen parameters, and which modules are in training mode.
        """
        self._root = root
        self._kept = {id(each): each for each in kept}
        self._hidden = frozenset(hidden)
        self._modes = modes
        self._pending: dict[str, Any] = {}
        self.remember()

    def remember(self) -> None:
        """Take the current values as those with which the object was made."""
        found = self.survey()
        self._made = {path: copy_tensors(coded) for path, (_, coded) in found.values.items()}
        self._objects = set(found.objects)
        self._flags = self._read_flags(found)
        self.lost = dict(found.lost)

    def share_made(self, known: dict[str, Any]) -> None:
        """Use the values with which the object was made before, or store them there."""
        if known:
            self._made, self._flags = known["values"], known["flags"]
        else:
            known |= {"values": self._made, "flags": self._flags}

    def survey(self) -> Survey:
        """Look at the object."""
        return Surveyor(self._kept, self._hidden).look(self._root)

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return the optimizers that were found, by path."""
        found = self.survey().objects
        return {path: each for path, each in found.items() if isinstance(each, torch.optim.Optimizer)}

    def list_created(self) -> list[str]:
        """Return the paths of objects that were created after the object was made."""
        return [path for path in self.survey().objects if path not in self._objects]

    def read(self) -> dict[str, Any]:
        """Return the state: objects and generators, and the values that have changed."""
        found = self.survey()
        objects = {path: read_object(each) for path, each in found.objects.items()}
        changed = {
            path: coded
            for path, (_, coded) in found.values.items()
            if path not in self._made or not is_same(coded, self._made[path])
        }
        given = {path: self._made[path] for path in changed if is_scalar(self._made.get(path))}
        aliases = {path: first for path, (_, first) in found.aliases.items() if first in changed}
        flags = {name: on for name, on in self._read_flags(found).items() if self._flags.get(name) != on}
        kinds = {path: found.values[path][0].is_item for path in changed}
        parts = {
            "objects": {**self._pending.get("objects", {}), **objects},
            "values": {path: [kinds[path], coded] for path, coded in changed.items()},
            "made": given,
            "aliases": aliases,
            "flags": flags,
            "gradients": {path: each.grad for path, each in self._trained(found) if each.grad is not None},
        }
        return {name: part for name, part in parts.items() if part}

    def load(self, saved: Mapping[str, Any], given: Collection[str] = ()) -> None:
        """Load a state. Values that it does not name are set back; `given` are values of the config."""
        self._pending = {}
        found = self.survey()
        values = dict(saved.get("values", {}))
        for path in given:  # the config has changed: its value wins
            before = saved.get("made", {})
            if path in values and path in before and not is_same(before[path], self._made.get(path)):
                del values[path]
        for path, (place, coded) in found.values.items():
            if path in values:
                continue
            if path not in self._made:
                place.remove()
            elif not is_same(coded, self._made[path]):
                place.set(put(place.get(), decode_value(copy_tensors(self._made[path]), place.get())))
        self._apply(saved.get("objects", {}), values, saved.get("aliases", {}), found)
        self._set_flags(found, {**self._flags, **saved.get("flags", {})})
        gradients = saved.get("gradients", {})
        for path, each in self._trained(self.survey()):
            each.grad = gradients[path].to(each.device) if path in gradients else None

    def snapshot(self) -> dict[str, Any]:
        """Return all plain values and generators, to restore them after an evaluation."""
        found = self.survey()
        generators = {p: each for p, each in found.objects.items() if isinstance(each, GENERATORS)}
        return {
            "values": {path: copy_tensors(coded) for path, (_, coded) in found.values.items()},
            "generators": {path: copy_tensors(read_object(each)) for path, each in generators.items()},
        }

    def restore(self, before: Mapping[str, Any]) -> None:
        """Restore a snapshot."""
        found = self.survey()
        for path, (place, coded) in found.values.items():
            if path not in before["values"]:
                place.remove()
            elif not is_same(coded, before["values"][path]):
                place.set(put(place.get(), decode_value(copy_tensors(before["values"][path]), place.get())))
        for path, state in before["generators"].items():
            if path in found.objects:
                load_object(found.objects[path], state)

    def modules(self) -> list[nn.Module]:
        """Return all modules of the object."""
        return list(self.survey().modules.values())

    def complete(self) -> list[str]:
        """Load what had no place when the state was loaded; return the paths that still have none."""
        if self._pending:
            waiting, self._pending = self._pending, {}
            self._apply(waiting["objects"], waiting["values"], waiting["aliases"], self.survey())
        return [path for part in self._pending.values() for path in part]

    def _apply(
        self,
        objects: Mapping[str, Any],
        values: Mapping[str, Any],
        aliases: Mapping[str, str],
        found: Survey,
    ) -> None:
        waiting: dict[str, dict[str, Any]] = {"objects": {}, "values": {}, "aliases": {}}
        for path, state in objects.items():
            if path in found.objects:
                load_object(found.objects[path], state)
            else:
                waiting["objects"][path] = state
        for path, (is_item, coded) in values.items():
            place = locate(found, path, is_item)
            if place is None:
                waiting["values"][path] = [is_item, coded]
                continue
            old = place.get()
            place.set(put(old, decode_value(coded, old)))
        for path, first in aliases.items():
            target, source = locate(found, path, None), locate(found, first, None)
            if target is not None and source is not None:
                target.set(source.get())
        if any(waiting.values()):
            self._pending = waiting

    def _trained(self, found: Survey) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors whose gradients may be accumulated from step to step."""
        if not self._modes:
            return
        for path, module in found.modules.items():
            for name, parameter in module.named_parameters():
                if parameter.grad is None or parameter.grad.layout is torch.strided:
                    yield join(path, name), parameter
        for path, (slot, _) in found.values.items():
            value = slot.get()
            if isinstance(value, Tensor) and value.is_leaf and value.requires_grad:
                yield path, value

    def _read_flags(self, found: Survey) -> dict[str, bool]:
        """Return which parameters are trained, and which modules are in training mode."""
        flags: dict[str, bool] = {}
        for path, module in found.modules.items() if self._modes else ():
            for name, parameter in module.named_parameters():
                flags[f"{join(path, name)}:requires_grad"] = parameter.requires_grad
            for name, part in module.named_modules():
                flags[f"{join(path, name)}:training"] = part.training
        return flags

    def _set_flags(self, found: Survey, flags: Mapping[str, bool]) -> None:
        for path, module in found.modules.items() if self._modes else ():
            for name, parameter in module.named_parameters():
                wanted = flags.get(f"{join(path, name)}:requires_grad", parameter.requires_grad)
                if parameter.requires_grad != wanted:
                    parameter.requires_grad_(wanted)
            for name, part in module.named_modules():
                part.training = flags.get(f"{join(path, name)}:training", part.training)


def is_scalar(value: Any) -> bool:
    """Return whether a made value is a single number or text, as a config sets it."""
    return isinstance(value, bool | int | float | str)
