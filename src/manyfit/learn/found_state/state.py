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
from typing import Any, Final

import torch
from torch import Tensor, nn

from manyfit.learn.found_state.generators import load_object, read_object
from manyfit.learn.found_state.groups import Groups
from manyfit.learn.found_state.hidden import read_outside
from manyfit.learn.found_state.survey import Slot, Survey, Surveyor, join, locate
from manyfit.learn.found_state.values import NotPlain, copy_tensors, decode_value, encode_value, is_same, put

KEPT: Final = "kept: "
"""The prefix of paths of optimizers whose state is stored elsewhere."""


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
        self._seen: Survey | None = None
        """What was found by the last look, for `notice`."""
        self.remember()

    def remember(self) -> None:
        """Take the current values as those with which the object was made."""
        found = self.survey()
        self._made = {path: copy_tensors(coded) for path, (_, coded) in found.values.items()}
        self._aliases = {path: first for path, (_, first) in found.aliases.items()}
        self._fixed = dict(found.fixed)
        self._outside = read_outside(self._root) if self._modes else {}
        self._objects = {path: type(each) for path, each in found.objects.items()}
        self._groups = Groups(self._optimizers(found))
        self._holders = set(found.holders)
        self._flags = self._read_flags(found)
        self.lost = dict(found.lost)

    def share_made(self, known: dict[str, Any]) -> None:
        """Use the values with which the object was made before, or store them there."""
        values, flags = known.get("values", {}), known.get("flags", {})
        known |= {"values": {**self._made, **values}, "flags": {**self._flags, **flags}}
        self._made, self._flags = known["values"], known["flags"]

    def notice(self) -> dict[str, str]:
        """Return what training has changed and a checkpoint cannot keep, with the reason, since `read`."""
        found = self._seen or self.survey()
        self._seen = None
        reason = "it was created during training (create it in __init__ or in setup())"
        noticed = dict.fromkeys(self.find_created(found), reason)
        optimizers = self._optimizers(found)
        kept = self._groups.read(optimizers, dict(self._iterate_named(found)))
        for path, each in found.objects.items():
            if path in self._objects and type(each) is not self._objects[path]:
                noticed[path] = "it was replaced during training"
        for path, each in found.objects.items():
            driven = getattr(each, "optimizer", None)
            if isinstance(driven, torch.optim.Optimizer) and all(
                driven is not o for o in optimizers.values()
            ):
                noticed[path] = "it changes an optimizer that is not on the object"
        for path, optimizer in optimizers.items():
            if self._groups.is_changed(path, optimizer) and path not in kept:
                noticed[path.removeprefix(KEPT)] = "it was given parameters that are not on the object"
        for path, value in found.fixed.items():
            if path in self._fixed and self._fixed[path] is not value and self._fixed[path] != value:
                noticed[path] = "it was replaced, or its objects were, during training"
        if self._modes:
            outside = read_outside(self._root)
            for path, coded in outside.items():
                if path in self._outside and not is_same(coded, self._outside[path]):
                    noticed[path] = "it has changed, but is not an attribute of the object"
        return noticed

    def find_created(self, found: Survey | None = None) -> list[str]:
        """Return the objects that were not there when the object was made; of nested ones, the outermost."""
        found = found or self.survey()
        known = self._objects.keys() | self._holders
        created = [path for path in (*found.objects, *found.holders) if path not in known]
        return [path for path in created if not any(path.startswith(f"{each}.") for each in created)]

    def survey(self) -> Survey:
        """Look at the object."""
        return Surveyor(self._kept, self._hidden, self._modes).look(self._root)

    def optimizers(self) -> dict[str, torch.optim.Optimizer]:
        """Return the optimizers that were found, by path."""
        found = self.survey().objects
        return {path: each for path, each in found.items() if isinstance(each, torch.optim.Optimizer)}

    def _optimizers(self, found: Survey) -> dict[str, torch.optim.Optimizer]:
        """Return all optimizers, also those whose state is stored elsewhere."""
        kept = [each for each in self._kept.values() if isinstance(each, torch.optim.Optimizer)]
        own = {path: each for path, each in found.objects.items() if isinstance(each, torch.optim.Optimizer)}
        return {
            f"{KEPT}optimizer {i}" if i else f"{KEPT}optimizer": each for i, each in enumerate(kept)
        } | own

    def read(self) -> dict[str, Any]:
        """Return the state: objects and generators, and the values that have changed."""
        found = self._seen = self.survey()
        changed = {
            path: coded
            for path, (_, coded) in found.values.items()
            if path not in self._made or not is_same(coded, self._made[path])
        }
        flags = {name: on for name, on in self._read_flags(found).items() if self._flags.get(name) != on}
        there = found.values.keys() | found.aliases.keys() | found.objects.keys() | found.modules.keys()
        gone = [path for path in self._made if path not in there and path not in found.holders]
        objects = {path: read_object(each) for path, each in found.objects.items()}
        aliases = {
            path: first for path, (_, first) in found.aliases.items() if self._aliases.get(path) != first
        }
        parts = {
            "objects": {**self._pending.get("objects", {}), **objects},
            "values": {path: describe_value(found.values[path][0], coded) for path, coded in changed.items()},
            "made": {path: self._made[path] for path in changed if is_scalar(self._made.get(path))},
            "aliases": aliases,
            "removed": [path for path in gone if _is_removable(found, path)],
            "flags": flags,
            "groups": self._groups.read(self._optimizers(found), dict(self._iterate_named(found))),
            "gradients": {
                path: each.grad for path, each in self._iterate_trained(found) if each.grad is not None
            },
        }
        return {name: part for name, part in parts.items() if part}

    def load(self, saved: Mapping[str, Any], is_changed: bool = False) -> None:
        """Load a state. Values that it does not name are set back.

        With `is_changed`, the config has changed: a value that it now makes differently wins.
        """
        self._pending = {}
        found = self.survey()
        values, before = dict(saved.get("values", {})), saved.get("made", {})
        for path in list(values) if is_changed else ():
            if path in before and not is_same(before[path], self._made.get(path)):
                del values[path]
        for path, (place, coded) in found.values.items():
            if path in values:
                continue
            if path not in self._made:
                place.remove()
            elif not is_same(coded, self._made[path]):
                place.set(put(place.get(), decode_value(copy_tensors(self._made[path]), place.get())))
        self._apply(saved.get("objects", {}), values, saved.get("aliases", {}), found)
        for path in saved.get("removed", ()):
            if path in found.values and path not in values:
                found.values[path][0].remove()
        self._set_flags(found, {**self._flags, **saved.get("flags", {})})
        gradients = saved.get("gradients", {})
        for path, each in self._iterate_trained(self.survey()):
            each.grad = gradients[path].to(each.device) if path in gradients else None

    def load_groups(self, saved: Mapping[str, Any]) -> None:
        """Load the parameter groups of all optimizers, before their states are loaded."""
        found = self.survey()
        self._groups.load(self._optimizers(found), saved.get("groups", {}), dict(self._iterate_named(found)))

    def snapshot(self) -> dict[str, Any]:
        """Return copies of all plain values and objects, to restore them after an evaluation."""
        found = self.survey()
        return {
            "values": {path: copy_tensors(coded) for path, (_, coded) in found.values.items()},
            "objects": {path: copy_tensors(read_object(each)) for path, each in found.objects.items()},
        }

    def restore(self, before: Mapping[str, Any]) -> None:
        """Restore a snapshot."""
        found = self.survey()
        for path, (place, coded) in found.values.items():
            if path not in before["values"]:
                place.remove()
            elif not is_same(coded, before["values"][path]):
                place.set(put(place.get(), decode_value(copy_tensors(before["values"][path]), place.get())))
        for path, state in before["objects"].items():
            if path in found.objects:
                load_object(found.objects[path], state)

    def modules(self) -> list[nn.Module]:
        """Return all modules of the object."""
        return list(self.survey().modules.values())

    @property
    def is_waiting(self) -> bool:
        """Whether a part of the loaded state has no place yet."""
        return bool(self._pending)

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
        for path, (is_item, coded, *key) in values.items():
            place = locate(found, path, is_item, *map(decode_value, key))
            try:
                if place is not None:
                    old = place.get()
                    place.set(put(old, decode_value(coded, old)))
                    continue
            except NotPlain:
                pass
            waiting["values"][path] = [is_item, coded, *key]
        for path, first in aliases.items():
            target = locate(found, path, False)
            source = found.objects.get(first, found.modules.get(first, found.holders.get(first)))
            if source is None and (slot := locate(found, first, None)) is not None:
                source = slot.get()
            if target is not None and source is not None:
                target.set(source)
        if any(waiting.values()):
            self._pending = waiting

    def _iterate_named(self, found: Survey) -> Iterator[tuple[str, Tensor]]:
        """Yield everything that an optimizer can train, by path."""
        for path, module in found.modules.items():
            for name, parameter in module.named_parameters():
                yield join(path, name), parameter
        for path, (slot, _) in found.values.items():
            if isinstance(value := slot.get(), Tensor):
                yield path, value

    def _iterate_trained(self, found: Survey) -> Iterator[tuple[str, Tensor]]:
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


def describe_value(slot: Slot, coded: Any) -> list[Any]:
    """Return a value as stored: whether it is an item, its contents, and its key if that is not text."""
    is_odd = slot.is_item and isinstance(slot.holder, dict) and not isinstance(slot.key, str)
    return [slot.is_item, coded, *([encode_value(slot.key)] if is_odd else [])]


def _is_removable(found: Survey, path: str) -> bool:
    holder = found.holders.get(path.rpartition(".")[0])
    return holder is not None and not isinstance(holder, list | tuple)
