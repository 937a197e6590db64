"""Loading and checking of `study.yaml`: a base config, an objective, a search and a search space."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from manyfit.config.config import Config
from manyfit.config.dialects.table import find_config, is_shipped, root_of
from manyfit.config.load import check_name, load_config, patch
from manyfit.config.schema.credentials import hide_secrets, know_secrets
from manyfit.config.schema.defaults import source_folder
from manyfit.config.schema.run import Run
from manyfit.config.study.quantities import seconds
from manyfit.config.study.sections import GRID, KEYS, Described, Execute, Mirrors, Objective, Search
from manyfit.config.study.space import SPECIAL, Space
from manyfit.config.study.space_reader import SpaceReader
from manyfit.config.tree.layers import Reader
from manyfit.config.tree.nodes import (
    PYTHON,
    Leaf,
    Map,
    Node,
    class_word,
    find,
    from_plain,
    join_path,
    leaves,
    plain,
)
from manyfit.config.tree.overrides import Override, Overrides, apply, collect, split
from manyfit.config.tree.project import project_root
from manyfit.config.tree.references import Resolver
from manyfit.config.typed.checker import Checker
from manyfit.config.typed.kinds import Kind
from manyfit.config.typed.roles import SAMPLER
from manyfit.config.typed.signatures import signature_of
from manyfit.core.errors import ConfigError, ExtraMissing, Origin, Problem, UsageError
from manyfit.core.names import nearest

FIXED_LAYOUT = ("data", "data.class", "data.shards", "data.first_shard", "data.visits")
"""Keys that trials that hop have in common."""


@dataclass(frozen=True)
class StudyConfig:
    """A checked study file: base config, search space and search."""

    folder: Path
    base: Config
    space: Space
    objective: Objective
    search: Search
    execute: Execute
    track: Mirrors
    text: Map = field(repr=False)
    """The file with its overrides, as a tree."""

    @property
    def seeds(self) -> list[int]:
        """The numbers of the replicates: their seeds, or with folds `seed * folds + fold`."""
        given = self.search.seeds
        first = self.base.run.seed
        seeds = [first + i for i in range(given)] if isinstance(given, int) else list(given)
        folds = self.search.folds
        return seeds if folds is None else [seed * folds + fold for seed in seeds for fold in range(folds)]

    def name_replicate(self, number: int) -> str:
        """Return the seed of a replicate, and its fold if there are folds."""
        folds = self.search.folds
        return f"seed {number}" if folds is None else "seed {} fold {}".format(*divmod(number, folds))

    @property
    def replicates(self) -> str:
        """What the replicates of a point are, in words."""
        folds = self.search.folds
        count = len(self.seeds) // (folds or 1)
        return f"{count} seeds" if folds is None else f"{count} seeds × {folds} folds"

    @property
    def is_grid(self) -> bool:
        """Whether all points are known before the first one is trained, independent of results."""
        return self.search.method.path == GRID

    def value(self, key: str) -> Any:
        """Return a value of the base config: as written, else its default."""
        path = tuple(key.split("."))
        node = find(self.base.tree, path)
        if node is not None:
            return plain(node)
        if path[-1] == "class" and isinstance(short := find(self.base.tree, path[:-1]), Leaf):
            return short.value
        return self.base.defaults.get(path)


def load_study(
    source: str | Path | Mapping[str, Any], overrides: Overrides = (), *, folder: Path | None = None
) -> StudyConfig:
    """Load a study: a folder with a `study.yaml`, such a file, or a dict together with `folder`.

    Raises `ConfigError` with every problem of the file at once.
    """
    problems: list[Problem] = []
    reader = Reader(problems)
    if isinstance(source, Mapping):
        if folder is None:
            raise UsageError("a study given as a dict needs a folder: sweep(study, folder='studies/<name>')")
        laid = reader.extend(from_plain(source), project_root(folder))
        place = project_root(folder)
    else:
        check_name(str(source))
        file = Path(source) / "study.yaml" if Path(source).is_dir() else Path(source)
        if not file.is_file():
            raise ConfigError([_no_file(file)])
        laid, place = reader.read(file), file.parent
        folder = folder or _folder_of(file)
    if laid is None:
        raise ConfigError(problems)
    know_secrets(laid)
    for override in collect(overrides, problems):
        laid = apply(laid, _merge_dotted(laid, override), problems)
    laid = hide_secrets(laid)
    laid = _refuse_unknown(laid, problems)
    base = _base(laid, place, folder, problems)
    laid = hide_secrets(laid)  # loading the base may have registered a secret
    described = _check_sections(laid, folder, problems)
    known = [join_path(path) for path, _ in leaves(base.tree)] if base is not None else []
    known += [join_path(path) for path in base.defaults] if base is not None else []
    space = _space(laid, known, problems)
    if described is not None and base is not None and described.search.folds is not None:
        base = _with_folds(base, described.search.folds, space, laid, problems)
    if described is not None:
        _check_hop(laid, described.execute, space, base, problems)
        _check_streams(laid, described.execute, problems)
    if problems or base is None or described is None:
        raise ConfigError(problems)
    return StudyConfig(
        folder, base, space, described.objective, described.search, described.execute, described.track, laid
    )


def _with_folds(base: Config, folds: int, space: Space, laid: Map, problems: list[Problem]) -> Config:
    """Return the base of a study whose replicates are folds: it has their number, and no fold."""
    node = find(laid, ("search", "folds")) or laid
    taken = [key for key in ("data.fold", "data.folds") if key in space.keys or base.origin(key) is not None]
    if taken:
        text = f"{taken[0]} is set by the study for each replicate; remove it from the base and the space"
        problems.append(Problem("search.folds", node.origin, text))
        return base
    return patch(base, [f"data.folds={folds}"])


def load_mirrors(place: Path) -> Mirrors:
    """Load only the `track` section of a study. No class that the study names is imported."""
    problems: list[Problem] = []
    laid = Reader(problems).read(place / "study.yaml")
    if laid is None or problems:
        raise ConfigError(problems)
    section = laid.items.get("track", Map({}, laid.origin))
    resolver = Resolver(Map({"track": section}, laid.origin), os.environ)
    tree = resolver.resolve()
    checker = Checker(tree, project_root(place), None, {})
    checker.kind = Kind.NEUTRAL
    found = checker.record(tree.items["track"], Mirrors, ("track",))
    if resolver.problems or checker.problems:
        raise ConfigError([*resolver.problems, *checker.problems])
    assert isinstance(found, Mirrors)
    return found


def _merge_dotted(laid: Map, override: Override) -> Override:
    """Return an override of `space.model.hidden` as one of `model.hidden` in `space`; the same for `set`."""
    section, *rest = map(str, override.path)
    if override.path == ("data_dir",):  # key of five components, set for all trials
        return replace(override, path=("set", "data_dir"))
    if section not in ("space", "set") or len(rest) < 2 or rest[0] in SPECIAL:
        return override
    node = laid.items.get(section)
    known = node.items if isinstance(node, Map) else {}
    for length in range(len(rest), 1, -1):
        if ".".join(rest[:length]) in known:
            return replace(override, path=(section, ".".join(rest[:length]), *rest[length:]))
    return replace(override, path=(section, ".".join(rest)))


def _refuse_unknown(laid: Map, problems: list[Problem]) -> Map:
    """Record and remove unknown keys."""
    for key in laid.items:
        if key not in KEYS:
            problems.append(
                Problem(key, laid.key_origin(key), "unknown key for a study", f"one of {', '.join(KEYS)}",
                        key, f"set.{key}" if key in signature_of(Run).parameters else nearest(key, KEYS))
            )  # fmt: skip
            laid = laid.without(key)
    return laid


def _folder_of(file: Path) -> Path:
    if file.name == "study.yaml":
        return file.parent
    return project_root(file) / "studies" / file.stem


def _no_file(file: Path) -> Problem:
    wanted = file.parent if file.name == "study.yaml" else file
    there = {path.parent.name: path.parent for path in wanted.parent.glob("*/study.yaml")}
    best = nearest(wanted.name, there)
    expected = "a folder with a study.yaml, or a YAML file"
    near = str(there[best]) if best else ""
    return Problem("", Origin(str(file)), "no such study", expected, suggestion=near)


def _check_sections(laid: Map, folder: Path, problems: list[Problem]) -> Described | None:
    """Check all sections except base and space."""
    rest = laid
    for name in ("base", "set", "space"):
        rest = rest.without(name)
    resolver = Resolver(rest, os.environ)
    tree = resolver.resolve()
    project = project_root(folder)
    method = _method(tree)
    if method.startswith("optuna.") and importlib.util.find_spec("optuna") is None:
        raise ExtraMissing("optuna", "search")
    checker = Checker(tree, project, source_folder(Map({}), project), {})
    checker.takes_sections = False
    found = checker.record(tree, Described, ())
    problems += [*resolver.problems, *checker.problems]
    if not isinstance(found, Described):
        return None
    search, where = found.search, find(tree, ("search",))
    assert where is not None
    if search.method.path != GRID and search.trials is None:
        problems.append(
            Problem(
                "search.trials",
                where.origin,
                "this search method requires the number of points",
                "a number",
                "nothing",
            )
        )
    if seconds(found.execute.timeout) == 0:
        where_ = find(tree, ("execute", "timeout"))
        problems.append(
            Problem(
                "execute.timeout",
                where_.origin if where_ else where.origin,
                "the timeout cannot be zero",
                "a duration such as 30m",
            )
        )
    if not isinstance(search.seeds, int):
        given = list(search.seeds)
        if not given or len(set(given)) < len(given) or min(given) < 0:
            problems.append(
                Problem(
                    "search.seeds",
                    where.origin,
                    "seeds must be distinct numbers, 0 or greater",
                    received=repr(given),
                )
            )
    return found


def _check_hop(
    laid: Map, execute: Execute, space: Space, base: Config | None, problems: list[Problem]
) -> None:
    """Check what depends on whether trials hop from shard to shard."""
    order = find(laid, ("execute", "order"))
    if order is not None and not execute.hop:
        text = "only trials that hop visit shards in some order"
        problems.append(Problem("execute.order", order.origin, text, "hop: true"))
    if not execute.hop:
        return
    fixed = [key for key in space.keys if key in FIXED_LAYOUT]
    where = find(laid, ("space",))
    if fixed and where is not None:
        text = "trials that hop share one layout of shards, so it cannot be searched over"
        problems.append(Problem(f"space.{fixed[0]}", where.origin, text))
    given = find(base.tree, ("data", "visits")) if base is not None else None
    if given is not None:
        text = "the order of visits is fixed, but that of trials that hop follows from execute.order"
        problems.append(Problem("data.visits", given.origin, text))


def _check_streams(laid: Map, execute: Execute, problems: list[Problem]) -> None:
    """Check that the streams of the workers are used."""
    given = find(laid, ("execute", "streams"))
    if given is None or execute.streams in ("auto", 1):
        return
    reasons = {
        "groups train side by side only if trials are fused": ("fuse: auto", execute.fuse == "off"),
        "trials that hop train one group at a time": ("hop: false", execute.hop),
        "a worker on Ray trains one group at a time": ("on: processes, or on: inline", execute.is_ray),
    }
    for text, (expected, is_wrong) in reasons.items():
        if is_wrong:
            problems.append(Problem("execute.streams", given.origin, text, expected))


def _method(tree: Map) -> str:
    """Return the class path of the search method."""
    node = find(tree, ("search", "method"))
    if isinstance(node, Map) and class_word(node):
        node = node.items[class_word(node)]
    name = node.value if isinstance(node, Leaf) else None
    return SAMPLER.short.get(str(name), str(name))


def _base(laid: Map, place: Path, folder: Path, problems: list[Problem]) -> Config | None:
    """Load the base config, with the values that the study sets for all trials."""
    node = laid.items.get("base")
    if node is None or not (
        isinstance(node, Map) or (isinstance(node, Leaf) and isinstance(node.value, str))
    ):
        where = node.origin if node is not None else laid.origin
        problems.append(
            Problem("base", where, "a study needs a base config", "a path such as ../../runs/mlp/config.yaml")
        )
        return None
    changes = [*_changes(laid, problems), *_list_forced(laid)]
    project = project_root(folder).resolve()
    try:
        if isinstance(node, Map):
            return _one_thread(load_config(plain(node), changes, project=project, trust=True))
        file = place / str(node.value)
        file = file if file.exists() else find_config(str(node.value), here=project) or file
        is_own = file.exists() and not is_shipped(file)
        if is_own and root_of(file).resolve() != project:
            problems.append(
                Problem("base", node.origin, "the base belongs to another project", f"a config in {project}",
                        str(file))
            )  # fmt: skip
            return None
        return _one_thread(load_config(file, changes, project=project, trust=True))
    except ConfigError as error:
        problems += [_as_written(problem) for problem in error.problems]
        return None


def _as_written(problem: Problem) -> Problem:
    """Return a problem with the keys of the study: its objective sets `export` in the config of a run."""
    named = {"export.metric": "objective.metric", "export.mode": "objective.mode"}
    return replace(problem, path=named.get(problem.path, problem.path))


def _one_thread(base: Config) -> Config:
    """Set the number of threads to one if it is not set: results depend on it bit by bit."""
    return base if base.run.train.threads is not None else patch(base, {"train.threads": 1})


def _changes(laid: Map, problems: list[Problem]) -> list[Override]:
    """Return the overrides in `set`: values for all trials, with dotted or nested keys."""
    node = laid.items.get("set")
    if node is None:
        return []
    if not isinstance(node, Map):
        problems.append(Problem("set", node.origin, "this is not a mapping", "{train.epochs: 5}"))
        return []
    return [
        Override("set", split(key, node.key_origin(key)), value, value.origin)
        for key, value in node.items.items()
    ]


def _list_forced(laid: Map) -> list[Override]:
    """Return the overrides that the study forces on all trials: objective, threads and mirrors."""
    found: list[Override] = []

    def put(key: str, node: Node) -> None:
        found.append(Override("set", tuple(key.split(".")), node, node.origin))

    for name in ("metric", "mode"):
        node = find(laid, ("objective", name))
        if isinstance(node, Leaf):
            put(f"export.{name}", node)
    threads = find(laid, ("execute", "threads"))
    if isinstance(threads, Leaf) and threads.value is not None:
        put("train.threads", threads)
    put("track.tensorboard", Leaf(False, PYTHON))
    put("track.mlflow", Leaf(None, PYTHON))
    return found


def _space(laid: Map, known: Sequence[str], problems: list[Problem]) -> Space:
    node = laid.items.get("space")
    if node is None:
        problems.append(
            Problem("space", laid.origin, "a study needs a space", "a mapping from keys to values")
        )
        return Space(())
    return SpaceReader(known, problems).read(node)
