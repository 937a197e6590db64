"""Epochs and loops of the user's: what they read, where they pause, and what they carry over."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch import Tensor

from manyfit.core.errors import UsageError
from manyfit.core.signals import StopRequested
from manyfit.data import Batch
from manyfit.learn.found_state.hidden import STATEFUL
from manyfit.learn.found_state.values import NotPlain, copy_tensors, encode_value, is_same
from manyfit.learn.functions.loaders import CountedBatches
from manyfit.learn.functions.loop_thread import LoopCancelled, LoopThread
from manyfit.learn.functions.losses import read_losses

if TYPE_CHECKING:
    from manyfit.learn.functions.learner import FunctionLearner

log = logging.getLogger("manyfit")


class OwnEpochs:
    """The epochs of an object with its own `train_epoch()` or `train()`."""

    def __init__(self, learner: FunctionLearner) -> None:
        self._learner = learner
        self._batches: Iterator[Batch] = iter(())
        self._thread: LoopThread | None = None
        self._allowed = 0
        self._is_dropped = False
        self._has_warned = False
        self._variables: dict[str, Any] = {}
        """Local variables of the loop where it paused."""
        self._expected: dict[str, Any] | None = None
        """The same, from the checkpoint that the run was resumed from."""
        self.stop_reason = ""
        self.is_running = False
        """Whether an epoch of the user's own is running."""

    @property
    def per_epoch(self) -> int:
        """Steps per epoch."""
        return self._learner.per_epoch

    @property
    def is_here(self) -> bool:
        """Whether the caller is the loop of the user's."""
        return self._thread is not None and self._thread.is_here

    def train(self, batches: Iterator[Batch], steps: int) -> None:
        """Train whole epochs, or everything at once."""
        if self._learner.functions.span == "whole":
            self._train_whole()
            return
        assert steps % self.per_epoch == 0
        for _ in range(steps // self.per_epoch):
            self._train_one(batches)

    def _train_whole(self) -> None:
        learner = self._learner
        learner.open_epoch()
        with learner.autocast():
            returned = learner.functions.train()
        learner.update.close_step()
        learner.add_losses(_read_returned(learner, returned, "train"), 1)
        learner.count_whole()

    def _train_one(self, batches: Iterator[Batch]) -> None:
        """Train one epoch; a request to stop goes back to its beginning."""
        learner, self._batches = self._learner, batches
        start = learner.copy_state()
        try:
            if learner.functions.span == "epoch":
                self._run(learner.functions.train_epoch)
            else:
                self._continue_loop()
        except StopRequested:
            self.drop()
            learner.load([start])
            raise

    def _continue_loop(self) -> None:
        """Continue the user's loop until it begins the epoch after the next, or ends."""
        learner = self._learner
        if self._thread is None:
            learner.functions.owner.start_epoch = learner.epoch
            self._is_dropped = False
            self._thread = LoopThread(learner.functions.train, learner.device)
        wanted, self._allowed = learner.step + self.per_epoch, 1
        self._variables = {}
        self._thread.advance()
        if learner.step != wanted:
            raise UsageError(
                f"{learner.functions.name}.train() returned without training epoch {learner.epoch}: it must "
                "call self.train_epoch() for every epoch from self.start_epoch to self.num_epochs"
            )
        if self._thread.has_ended:
            self._thread = None
            if learner.epoch < learner.epochs:
                self.stop_reason = f"{learner.functions.name}.train() returned after epoch {learner.epoch}"

    def enter(self, function: Callable[[], Any] | None) -> None:
        """Train one epoch for the user's loop, which pauses here until this epoch is due."""
        thread, learner = self._thread, self._learner
        if thread is None or not thread.is_here:
            raise UsageError(
                f"{learner.functions.name}.train_epoch() can only be called by train() or by manyfit"
            )
        if not self._allowed:
            self._variables = read_variables(sys._getframe(1))
            thread.pause()
        elif self._expected is not None:
            self._compare(read_variables(sys._getframe(1)))
        self._allowed -= 1
        learner.complete_state()
        self._run(function)

    def _compare(self, now: Mapping[str, Any]) -> None:
        """Name local variables that a resumed loop has lost."""
        before, self._expected = self._expected or {}, None
        for name, value in before.items():
            if name not in now or not is_same(now[name], value):
                log.warning(
                    "the local variable %s of %s is not kept in checkpoints: it was %s when the run was "
                    "interrupted and is now %s; make it an attribute of self",
                    name, self._learner.functions.name, _show(value), _show(now.get(name, "not set")),
                )  # fmt: skip

    def _run(self, function: Callable[[], Any] | None) -> None:
        """Run one epoch; batches that it leaves unread are skipped, so that the order stays the same."""
        learner, functions = self._learner, self._learner.functions
        if function is None:
            for _ in range(self.per_epoch):
                self._check_dropped()
                learner.train_batch(self._batches)
            return
        learner.open_epoch()
        feed = CountedBatches(self._take, learner.count_batch, self.per_epoch)
        loader = learner.loaders["train"]
        assert loader is not None
        loader.attach(feed)
        self.is_running = True
        try:
            with learner.autocast():
                returned = function()
        finally:
            self.is_running = False
            loader.attach(None)
        feed.settle()
        read = feed.handed
        for _ in feed:
            pass
        feed.settle()
        if read < self.per_epoch and not self._has_warned:
            self._has_warned = True
            log.warning(
                "%s.train_epoch has read %d of %d batches of self.train_loader; the others are skipped",
                functions.name, read, self.per_epoch,
            )  # fmt: skip
        learner.add_losses(_read_returned(learner, returned, "train_epoch"), max(1, feed.rows))
        learner.close_epoch()

    def _take(self) -> Batch:
        self._check_dropped()
        batch = self._learner.take_batch(self._batches)
        self._check_dropped()
        return batch

    def _check_dropped(self) -> None:
        if self._is_dropped and self._thread is not None and self._thread.is_here:
            raise LoopCancelled

    def drop(self) -> None:
        """Leave the user's loop where it is; the next epoch starts it again."""
        self._is_dropped, self._thread = True, None

    def close(self) -> None:
        """End the user's loop where it pauses, after the last epoch."""
        if self._thread is not None:
            thread, self._thread = self._thread, None
            thread.cancel()

    def state(self) -> dict[str, Any]:
        """Return why the loop has ended, and its local variables, which are compared after a resume."""
        parts: dict[str, Any] = {"loop": {"ended": self.stop_reason}} if self.stop_reason else {}
        if self._variables:
            parts.setdefault("loop", {})["variables"] = self._variables
        return parts

    def load(self, parts: Mapping[str, Any]) -> None:
        """Load a state; the loop begins again."""
        self.close()
        found = parts.get("loop", {})
        self.stop_reason = found.get("ended", "")
        self._expected, self._variables = found.get("variables"), dict(found.get("variables", {}))


def _read_returned(learner: FunctionLearner, returned: Any, method: str) -> dict[str, Tensor]:
    return read_losses(returned, f"{learner.functions.name}.{method}", learner.device)


def _show(coded: Any) -> str:
    return repr(next(iter(coded.values())) if isinstance(coded, dict) else coded)[:60]


def read_variables(frame: FrameType | None) -> dict[str, Any]:
    """Return the plain local variables of the user's functions that lead here, by function and name."""
    found: dict[str, Any] = {}
    while frame is not None:
        module = frame.f_globals.get("__name__", "")
        if not module.startswith(("manyfit.", "threading", "contextvars")):
            for name, value in frame.f_locals.items():
                where = f"{name!r} of {frame.f_code.co_name}()"
                try:
                    found[where] = copy_tensors(encode_value(value))
                except NotPlain:
                    if isinstance(value, STATEFUL):
                        found[where] = f"a {type(value).__name__}"
        frame = frame.f_back
    return found
