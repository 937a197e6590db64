"""Cut a run short in the middle of an epoch, as a scheduler would, and let it go on."""

from __future__ import annotations

import os
import signal

import pytest

import manyfit
from manyfit.core.errors import Interrupted
from manyfit.run.resume_proof import difference
from manyfit.store.folder import RunFolder


def resumes(project, tree, step=6, **options):
    """Train a config at once, and cut short, as a rule in the middle of its second epoch: the same."""
    whole = manyfit.train(tree, folder="runs/whole", callbacks=[], **options)
    with pytest.raises(Interrupted):
        manyfit.train(tree, folder="runs/parts", callbacks=[Ask(step)], **options)
    assert RunFolder(project.root / "runs/parts").checkpoints()[-1].step == step
    parts = manyfit.train(tree, folder="runs/parts", callbacks=[], **options)
    for name in ("whole", "parts"):
        (project.root / f"runs/{name}.trace").write_text("[0, []]\n")
    assert difference(RunFolder(whole.folder), RunFolder(parts.folder)) == ""
    return whole


class Ask:
    """Asks to stop at a step, as a signal would."""

    def __init__(self, step):
        self.step = step

    def on_start(self, cohort):
        plan, asked = cohort.plan, self.step

        class Pauses(type(plan)):
            def next(self, step, most):
                return super().next(step, min(most, asked - step) if step < asked else most)

        cohort.plan = Pauses(*(getattr(plan, name) for name in plan.__slots__))

    def on_boundary(self, cohort, boundary, rows):
        if boundary.step == self.step:
            os.kill(os.getpid(), signal.SIGUSR1)

    def on_end(self, cohort):
        pass


def same(project, left, right):
    """The first difference between two runs of a project; empty if there is none."""
    for name in (left, right):
        (project.root / f"runs/{name}.trace").write_text("[0, []]\n")
    return difference(RunFolder(project.root / "runs" / left), RunFolder(project.root / "runs" / right))
