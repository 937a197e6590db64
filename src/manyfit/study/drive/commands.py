"""Commands to a study: sent from the command line, carried out by the driver."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from manyfit.config.study.space import to_patch
from manyfit.config.study.study import load_study
from manyfit.config.tree.nodes import join_path, plain
from manyfit.config.tree.overrides import COMMAND_LINE, Overrides, collect
from manyfit.core.errors import ConfigError, ManyfitError, Problem, UsageError
from manyfit.core.names import pluralize
from manyfit.study.drive.inbox import Command, Inbox, number_of, send_command
from manyfit.study.drive.point_control import PointControl
from manyfit.study.ledger.reader import read_only
from manyfit.study.search.decisions import next_pause
from manyfit.study.work.folder import StudyFolder
from manyfit.study.work.points import candidate
from manyfit.study.work.records import epochs_of

log = logging.getLogger("manyfit")


def points_of(place: Path, texts: Sequence[str]) -> list[int]:
    """Return the numbers of the points that a user names."""
    points, _, _ = read_only(StudyFolder(place).ledger)
    ids = {point.id: point.number for point in points}
    ids |= {trial.id: point.number for point in points for trial in point.trials}
    return [number_of(text, len(points), ids) for text in texts]


def leave_command(
    place: Path,
    action: str,
    point: int | None = None,
    values: Mapping[str, Any] | None = None,
    weights: bool = False,
) -> None:
    """Send a command to the driver, after checking that it can be carried out."""
    points, _, _ = read_only(StudyFolder(place).ledger)
    if "seed" in (values or {}):
        raise UsageError("seeds are replicates, not values of a point: increase search.seeds")
    if action in ("add", "clone"):
        base = points[point].values if point is not None else {}
        candidate(load_study(place), to_patch({**base, **(values or {})}, COMMAND_LINE), action)
    send_command(StudyFolder(place).inbox, Command(action, point, values or {}, weights))


def parse_values(overrides: Overrides) -> dict[str, Any]:
    """Convert overrides to the values of a point."""
    problems: list[Problem] = []
    found = collect(overrides, problems)
    if problems:
        raise ConfigError(problems)
    for override in found:
        if override.action != "set":
            raise UsageError(f"{override.origin}: the values of a point must be given as KEY=VALUE")
    return {join_path(override.path): plain(override.value) for override in found}


def obey_commands(control: PointControl, inbox: Inbox) -> None:
    """Carry out the pending commands; one that cannot be carried out is moved to `inbox/refused/`."""
    for command in inbox.commands():
        try:
            # The ledger also records which files are done: after a crash between the commit and `done`,
            # the file still exists, and its command must not be carried out twice.
            if not control.ledger.get(f"inbox {command.file}"):
                with control.ledger.transaction():
                    _carry_out(control, command)
                    control.ledger.set(f"inbox {command.file}", True)
            inbox.done(command.file)
        except (ManyfitError, RecursionError) as error:
            log.warning("%s: %s", command.action, error)
            inbox.refuse(command.file, str(error))


def _carry_out(control: PointControl, command: Command) -> None:
    if command.action == "add":
        control.add_point(command.values, None, "added", "asked by a person")
        return
    if command.action == "scale":
        control.executor.resize(command.values["workers"])
        control.ledger.decide(None, "scale", f"{pluralize(command.values['workers'], 'worker')} from now on")
        return
    assert command.point is not None
    point = control.point(command.point)
    if command.action == "stop":
        control.stop(point, "stopped by a person")
        point.granted = 0  # marks a stop by a user, which no stopper may revoke
        control.ledger.save_point(point)
    elif command.action == "resume":
        until = next_pause(control.stopper, point.epoch, epochs_of(point.values, control.epochs))
        control.go(point, until, "resumed by a person")
    else:
        parent = command.point if command.weights else None
        values = command.values if command.weights else {**point.values, **command.values}
        control.add_point(values, parent, "cloned", f"a clone of {point.number}")
