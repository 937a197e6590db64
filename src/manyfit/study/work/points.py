"""Points and trials, named by hashes of their contents: the same point always has the same name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from manyfit.config import Config, patch
from manyfit.config.identity import NOT_SET, flat, hash_data, identity
from manyfit.config.study.space import Patch, to_overrides, to_patch
from manyfit.config.study.study import StudyConfig
from manyfit.config.tree.nodes import plain
from manyfit.core.errors import Origin

LENGTH: Final = 12
STUDY: Final = Origin("study")


@dataclass(frozen=True)
class Candidate:
    """A point that may be tried: its values, its name and its origin."""

    id: str
    values: Mapping[str, Any]
    origin: str
    parent: str = ""
    """The point whose weights it starts with, and their steps by seed: `<id>@<seed>:<step>,…`."""
    attrs: Mapping[str, Any] = field(default_factory=dict)
    """Data that a sampler stores with it."""


def configure_point(base: Config, patch_: Patch, seed: int | None = None) -> Config:
    """Return the validated config of a point."""
    seeded = to_overrides(to_patch(read_replicate(base, seed), STUDY)) if seed is not None else []
    return patch(base, [*seeded, *to_overrides(patch_)])


def read_replicate(base: Config, number: int) -> dict[str, int]:
    """Return the values of a replicate: its seed; with folds, which the base has without a fold, also that.

    With folds, the number is `seed * folds + fold`.
    """
    if base.origin("data.folds") is None or base.origin("data.fold") is not None:
        return {"seed": number}
    data = base.run.data
    seed, fold = divmod(number, {**data.beside, **data.params}["folds"])
    return {"seed": seed, "data.fold": fold}


def trial_config(base: Config, values: Mapping[str, Any], seed: int, changes: Mapping[str, Any]) -> Config:
    """Return the config of a trial."""
    return configure_point(base, to_patch({**values, **changes}, STUDY), seed)


def candidate(
    study: StudyConfig,
    patch_: Patch,
    origin: str,
    parent: str = "",
    attrs: Mapping[str, Any] | None = None,
) -> Candidate:
    """Return a named point. Raises `ConfigError` if its config is invalid."""
    config = configure_point(study.base, patch_)
    values = {key: plain(node) for key, node in patch_.items()}
    return Candidate(name(config, study.space.keys, parent), values, origin, parent, attrs or {})


def name(config: Config, keys: Sequence[str], parent: str = "") -> str:
    """Return the name of a point: a hash of explicit identity values and of all axes, without the seed."""
    kept = flat(identity(config.explicit, config.kinds))
    kept.pop("seed", None)
    given = flat(config.explicit)
    for key in keys:
        found = {k: v for k, v in given.items() if k == key or k.startswith(f"{key}.")}
        if not found:
            value = config.snapshot.values.get(key, NOT_SET)
            found = {} if value is NOT_SET else {key: value}
        kept |= found
    return hash_data({"point": kept, "parent": parent} if parent else kept)[:LENGTH]


def trial_name(point: str, seed: int) -> str:
    """Return the name of a trial."""
    return hash_data([point, seed])[:LENGTH]
