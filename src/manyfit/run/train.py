"""`train`: from a config to a trained and evaluated run, in one repeatable call."""

from __future__ import annotations

import logging
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from manyfit.config import Config, load_config
from manyfit.config.dialects.table import DIALECTS, dialect_of, root_of
from manyfit.config.load import config_file, patch
from manyfit.config.tree.layers import display_path
from manyfit.config.tree.overrides import Overrides, pair
from manyfit.config.tree.project import is_folder, project_root
from manyfit.core.errors import ConfigError, RunConflict, UsageError
from manyfit.core.files import read_text
from manyfit.core.names import listing
from manyfit.core.signals import watch_signals
from manyfit.run.loop.journal import hold_folder, record_failure, translate_failures
from manyfit.run.loop.trainer import Callback
from manyfit.run.result import RunResult
from manyfit.store import durable, provenance
from manyfit.store.folder import COPIED, RunFolder

log = logging.getLogger("manyfit")


def train(
    source: str | Path | Mapping[str, Any],
    overrides: Overrides = (),
    *,
    folder: str | Path | None = None,
    callbacks: Sequence[Callback] | None = None,
    allow_change: Collection[str] = (),
    debug: bool = False,
) -> RunResult:
    """Train what a config describes, evaluate it, and return the result.

    `source` is a run folder, a YAML file, or the config as a dict; a dict needs `folder`, the run folder.
    An interrupted run resumes from its last checkpoint; a finished one is not trained again unless its epochs
    were raised. With `debug`, everything happens in a temporary folder.

    >>> manyfit.train("runs/digits-mlp", ["train.epochs=30"])    # doctest: +SKIP
    """
    from manyfit.data.randomness import own_randomness
    from manyfit.run.callbacks.mirrors import finish_trackers, mirrors
    from manyfit.run.callbacks.progress import progress_for
    from manyfit.run.session.batch_rehearsal import rehearse_batch
    from manyfit.run.session.finish import finish
    from manyfit.run.session.fusing import launch_run
    from manyfit.run.session.session import advance, begin_run, open_run, write_resolved

    check_callbacks(callbacks or ())
    config, run = locate_run(source, overrides, folder)
    shown = callbacks if callbacks is not None else [progress_for(sys.stderr)]
    if not debug:
        durable.make_place(run.path)
    with (
        temporary(run, debug) as run,
        hold_folder(run, debug),
        translate_failures(run),
        watch_signals() as watch,
        own_randomness(),
        ExitStack() as stack,
    ):
        with watch.translate("ended by {name} before anything was trained, while reading data"):
            with watch.reading():
                here = stack.enter_context(open_run(config, run, allow_change))
            if here.is_over and run.summary().get("step") == here.step:
                write_resolved(here.config, run)
                return result(run)
            with watch.reading():
                rehearse_batch(here.built, here.config)
        begin_run(here, provenance.session(config.project, here.facts))
        trackers = mirrors(here.config, run)
        with record_failure(run), finish_trackers(trackers, run):
            found = advance([here], [*trackers, *shown], watch, learner=launch_run(here))
            ((_, member),) = filter(None, found)
            here.built.learner.end()
            with watch.translate(
                f"ended while evaluating {run.path}; run the same command again to evaluate it"
            ):
                finish(here.config, run, here.built, watch, member.end_reason, callbacks is None)
        return result(run, trained=run.checkpoints()[-1].step - here.step)


def check_callbacks(callbacks: Sequence[Any]) -> None:
    """Refuse objects that are not callbacks."""
    for callback in callbacks:
        missing = [
            n for n in ("on_start", "on_boundary", "on_end") if not callable(getattr(callback, n, None))
        ]
        if missing:
            raise UsageError(f"the callback {callback!r:.60} has no {listing(missing)}")
        if isinstance(callback, type):
            raise UsageError(f"the callback {callback.__name__} is a class; pass an instance of it")


def locate_run(
    source: str | Path | Mapping[str, Any], overrides: Overrides, folder: str | Path | None
) -> tuple[Config, RunFolder]:
    """Return the config, and the folder in which it is trained."""
    is_tree = isinstance(source, Mapping) and folder is not None
    project = project_root(Path(str(folder))) if is_tree else None
    try:
        config = load_config(source, overrides, project=project, trust=True)
    except ConfigError as error:
        # The path of the data may have been given when the run was started, and not now.
        missing = [key for each in DIALECTS for key in each.path_keys]
        missing = [key for key in missing if any(problem.path == key for problem in error.problems)]
        before = RunFolder(place(source, folder)).snapshot() if missing else None
        known = [pair(key, before.values[key]) for key in missing if before and key in before.values]
        if not known:
            raise
        config = load_config(source, [*overrides, *known], project=project, trust=True)
    run = RunFolder(place(source, folder, config))
    key = dialect_of(config.given.tree).folder_key
    if key and not (folder or config.folder or run.config.exists()):
        log.warning("%s is not set: the run is stored in %s", key, display_path(run.path))
    if config.file is not None and root_of(run.config) != config.project:
        # Paths relative to the project root must also be found later, when only the run folder is known.
        config = patch(config, {"project_path": str(config.project)})
    check_place(config, run)
    return config, run


def place(
    source: str | Path | Mapping[str, Any], folder: str | Path | None, config: Config | None = None
) -> Path:
    """Return the run folder: as given, the folder of its config.yaml, or runs/<name of the file>."""
    if folder is not None:
        return Path(folder)
    configured = config.folder if config is not None else None
    if isinstance(source, Mapping) and configured is None:
        raise UsageError("a config without a file needs a run folder: train(config, folder='runs/<name>')")
    if isinstance(source, Mapping):
        return Path(str(configured)).expanduser()
    if is_folder(Path(source)):
        return Path(source)
    file = config_file(Path(source))
    if file.name in ("config.yaml", "config.resolved.yaml"):
        return file.parent
    root = config.project if config is not None else root_of(file)
    return root / Path(configured).expanduser() if configured is not None else root / "runs" / file.stem


@contextmanager
def temporary(run: RunFolder, wanted: bool) -> Iterator[RunFolder]:
    """Yield the run folder, or a temporary one."""
    if not wanted:
        yield run
        return
    with tempfile.TemporaryDirectory(prefix="manyfit-") as path:
        yield RunFolder(Path(path) / run.name)


def result(run: RunFolder, trained: int = 0) -> RunResult:
    """Read the result of a finished run."""
    summary = run.summary()
    return RunResult(
        run.path, summary["step"], summary["best_step"], summary["metrics"], summary["test"], trained, summary
    )


def check_place(config: Config, run: RunFolder) -> None:
    """Refuse to overwrite a config.yaml that a user wrote: a config from elsewhere is copied over it."""
    if config.file is not None and config.file.resolve() in (run.config.resolve(), run.resolved.resolve()):
        return
    if run.config.exists() and not read_text(run.config).startswith(COPIED):
        raise RunConflict(f"{run.config} is a different config; train that one, or choose another folder")
