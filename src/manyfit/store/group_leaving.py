"""Runs that take their checkpoints out of the folder of a group after the process of the group has died."""

from __future__ import annotations

import logging
from pathlib import Path

from manyfit.core.errors import FolderError
from manyfit.store import durable
from manyfit.store.checkpoint import Keep, checkpoints
from manyfit.store.group_folder import REFERENCE, discard_unused, find_grouped, read_reference, restore_log

log = logging.getLogger("manyfit")


def leave_group(folder: Path, metrics: Path, keep: Keep) -> None:
    """Give a run its own files of the checkpoints that it keeps, if some are in the folder of a group.

    `folder` has its checkpoints, and `metrics` is its log. What is damaged stays where it is.
    """
    try:
        reference = read_reference(folder)
    except FolderError:
        return  # `newest` reports it
    if reference is None:
        return
    _, damage = find_grouped(folder)
    every = checkpoints(folder)
    if every and (last := every[-1]).grouped is not None:
        restore_log(metrics, last.grouped.commit, reference.run, last.log_length)
    for found in keep.select(every):
        if found.grouped is None:
            continue
        try:
            found.copy_to(found.path)
        except FolderError as error:
            damage = damage or str(error)
    if damage:
        log.warning("%s", damage)
        return
    durable.remove_file(folder / REFERENCE)
    discard_unused(reference.group)
