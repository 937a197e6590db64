"""The run folders of trials that are trained by workers without these folders. The driver owns them."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import resource
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import Final

from manyfit.config import Config
from manyfit.config.study.study import StudyConfig
from manyfit.core.errors import ManyfitError
from manyfit.core.files import check_file
from manyfit.core.redaction import redact
from manyfit.run.folder_copy import FolderCopy, copy_folder, take_files
from manyfit.run.travel.keeper import Keeper, Start
from manyfit.run.travel.luggage import Parcel
from manyfit.store.lock import hold_lock
from manyfit.study.executors.worker import OUTPUT
from manyfit.study.work.failures import failure_of
from manyfit.study.work.folder import StudyFolder
from manyfit.study.work.points import trial_config
from manyfit.study.work.records import TrialRecord
from manyfit.study.work.training import OURS, STUDY_FILE, curve_of, text_of
from manyfit.study.work.units import Failure, Outcome, Progress, Trial

log = logging.getLogger("manyfit")

MOST_OPEN: Final = 256
"""The number of runs whose folders are open at once; each needs open files and a thread."""
FILES: Final = 8
"""Open files of such a run: its lock, its log, and states in memory that wait to be written."""
OTHER_FILES: Final = 256
SHARE: Final = 4
"""States in memory occupy at most this part of the machine's memory: a quarter."""


@dataclass
class Keepers:
    """The open run folders of one study, by trial."""

    study: StudyConfig
    folder: StudyFolder
    allowed: Collection[str] = ()
    ready: dict[str, Config] = field(default_factory=dict)
    """Configs of trials that were already loaded; each is used once."""
    sent: set[str] = field(default_factory=set)
    """The trials that are with a worker."""

    def __post_init__(self) -> None:
        self._open: OrderedDict[str, Keeper] = OrderedDict()
        self._errors: dict[str, Failure] = {}
        """Why a delivery could not be taken over, by trial."""
        self._most_open = count_open_runs()

    @property
    def most_away(self) -> int:
        """How many trials may be with one worker, which has their states in open files."""
        return max(1, self._most_open // 2)

    def get(self, trial: str) -> Keeper | None:
        """Return the keeper of a trial, if its folder is open."""
        return self._open.get(trial)

    def open(self, trial: Trial) -> Keeper:
        """Return the keeper of a trial."""
        keeper = self._open.get(trial.id)
        if keeper is None:
            config = self.ready.pop(trial.id, None)
            if config is None or trial.changes:
                config = trial_config(self.study.base, trial.values, trial.seed, trial.changes)
            start = Start(STUDY_FILE, text_of(config, trial), (*self.allowed, *OURS))
            keeper = Keeper(config, self.folder.trial(trial.id), start)
            self._open[trial.id] = keeper
            self._make_room()
        self._open.move_to_end(trial.id)
        return keeper

    def _make_room(self) -> None:
        """Close the runs that were used least recently; their states are on disk."""
        most = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // SHARE
        idle = [trial for trial in self._open if trial not in self.sent]
        size = sum(keeper.size for keeper in self._open.values())
        while len(idle) > 1 and (len(self._open) > self._most_open or size > most):
            size -= self._open[idle[0]].size
            self.close(idle.pop(0))

    def take_delivery(self, progress: Progress) -> None:
        """Take over what a trial has trained so far. An error is part of the outcome of its unit."""
        keeper = self._open.get(progress.trial)
        if keeper is None or progress.trial in self._errors or progress.trial not in self.sent:
            return
        try:
            parcel: Parcel = progress.parcel
            keeper.take(parcel, is_whole=False)
        except (ManyfitError, OSError) as error:
            self._errors[progress.trial] = failure_of(error)

    def take(self, outcome: Outcome, before: int) -> Outcome:
        """Take over what a unit returned; return the outcome with the progress of the trial.

        `before` is the step at which the ledger has it.
        """
        keeper = self._open[outcome.trial]
        self.sent.discard(outcome.trial)
        failed = self._errors.pop(outcome.trial, None)
        try:
            if failed is None and outcome.parcel is not None:
                reached = keeper.take(outcome.parcel, outcome.failure is None)
                outcome = replace(outcome, over=reached.over, reason=reached.reason)
            if outcome.output:
                keeper.append_output(outcome.output)
        except (ManyfitError, OSError) as error:
            failed = failure_of(error)
        if failed is not None:
            self.abandon(outcome.trial)
            return replace(outcome, parcel=None, failure=failed)
        is_measured = keeper.note is None or keeper.note.measured
        epoch = keeper.epoch if is_measured else math.nextafter(keeper.epoch, 0.0)  # not complete yet
        return replace(
            outcome, parcel=None, output="", step=keeper.step, epoch=epoch,
            trained=max(0, keeper.step - before), curve=curve_of(keeper.events, self.study.objective.metric),
        )  # fmt: skip

    def lend(self, trial: Trial) -> FolderCopy:
        """Return a copy of the folder of a trained trial, to evaluate it elsewhere."""
        self.close(trial.id)
        return copy_folder(self.folder.trial(trial.id))

    def append_output(self, trial: str, text: str) -> None:
        """Append the output of an evaluation to `output.log`."""
        path = self.folder.trial(trial).path / OUTPUT
        check_file(path)
        with path.open("a", encoding="utf-8") as file:
            file.write(redact(text))

    def take_evaluated(self, trial: Trial, found: FolderCopy | None) -> None:
        """Write the files of an evaluation to the folder of its trial."""
        if found is None:
            return
        config = trial_config(self.study.base, trial.values, trial.seed, trial.changes)
        run = self.folder.trial(trial.id)
        with hold_lock(run.path):
            take_files(config, run, found)

    def note_failure(self, trial: TrialRecord, failure: Failure) -> None:
        """Record in the folder of a trial why it cannot continue; one that is retried is opened again."""
        keeper = self._open.get(trial.id)
        if keeper is not None and trial.state in ("failed", "infeasible"):
            keeper.fail(failure.kind, failure.message)
        elif keeper is not None and failure.kind == "out of memory":
            self.abandon(trial.id)  # its config has changed

    def flush(self, trial: str) -> None:
        """Write the newest state of a trial to disk, before others read it."""
        if trial in self._open:
            self._open[trial].flush()

    def close(self, trial: str) -> None:
        """Write the state of a trial to disk, and give its folder back."""
        keeper = self._open.pop(trial, None)
        if keeper is not None:
            keeper.close()

    def abandon(self, trial: str) -> None:
        """Give the folder of a trial back after an error: it resumes from what is on disk."""
        with contextlib.suppress(ManyfitError, OSError):
            self.close(trial)

    def close_all(self) -> None:
        """Write the states of all trials to disk."""
        for trial in list(self._open):
            try:
                self.close(trial)
            except (ManyfitError, OSError) as error:
                log.warning("%s", error)


def count_open_runs() -> int:
    """Return how many runs can be open at once, after raising the limit on open files if necessary."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OTHER_FILES + FILES * MOST_OPEN
    if resource.RLIM_INFINITY in (soft, hard) or hard >= wanted:
        if soft != resource.RLIM_INFINITY and soft < wanted:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        return MOST_OPEN
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return max(4, (hard - min(OTHER_FILES, hard // 2)) // FILES)
