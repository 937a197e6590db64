"""A trainer that is killed ends as if nothing had happened, whatever it overrides: bit for bit."""

from __future__ import annotations

import signal

import pytest
from tests.conftest import Project
from tests.run.cut import resumes
from tests.trainers.full import FULL, TREE

from manyfit.run.check import check_resume
from manyfit.run.resume_proof import Kill, difference, kill_and_resume
from manyfit.store.folder import RunFolder

CLASSES = ("Full", "FullEpoch", "FullLoop")
SOAK = pytest.mark.soak
BY_STEP = ["train.every.log=3ba", "train.every.validate=4ba", "train.every.checkpoint=2ba"]
POINTS = {
    "Full": [Kill("step", 7), Kill("write", 11)],
    "FullEpoch": [Kill("step", 6), Kill("validation", 7)],
    "FullLoop": [Kill("step", 7), Kill("write", 9)],
}


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A project, and a run of each class that nobody has killed."""
    project = Project(tmp_path_factory.mktemp("kills"))
    project.write("src/full.py", FULL)
    found = {}

    def of(name):
        if name not in found:
            project.config({**TREE, "trainer": {"class": f"full.{name}"}}, name)
            folder = project.root / "runs" / f"{name}-whole"
            kill_and_resume(project.root / "runs" / name, changes(name), folder, [])
            found[name] = RunFolder(folder)
        return found[name]

    return project, of


def changes(name):
    return BY_STEP if name == "Full" else ["train.every.checkpoint=1ep"]


def check(place, name, kills):
    project, of = place
    whole, words = of(name), "-".join(f"{kill.where}{kill.count}" for kill in kills)
    folder = project.root / "runs" / f"{name}-{words}"
    assert kill_and_resume(project.root / "runs" / name, changes(name), folder, kills) == len(kills)
    assert difference(whole, RunFolder(folder)) == ""


@pytest.mark.parametrize(
    ("name", "kill"), [(name, kill) for name in CLASSES for kill in POINTS[name]], ids=str
)
def test_a_killed_trainer_goes_on_exactly(place, name, kill):
    check(place, name, [kill])


@SOAK
@pytest.mark.parametrize("count", range(1, 13))
@pytest.mark.parametrize("name", CLASSES)
def test_it_is_killed_at_every_step(place, name, count):
    check(place, name, [Kill("step", count)])


@SOAK
@pytest.mark.parametrize("count", range(1, 60))
@pytest.mark.parametrize("name", CLASSES)
def test_it_is_killed_at_every_disk_operation(place, name, count):
    project, of = place
    whole, folder = of(name), project.root / "runs" / f"{name}-write{count}"
    kill_and_resume(project.root / "runs" / name, changes(name), folder, [Kill("write", count)])
    assert difference(whole, RunFolder(folder)) == ""


@pytest.mark.parametrize("name", CLASSES)
def test_cadences_do_not_matter(place, name):
    project, of = place
    other = ["train.every.log=2ep", "train.every.checkpoint=2ep"]
    other += ["train.every.validate=4ba"] if name == "Full" else []
    folder = project.root / "runs" / f"{name}-sparse"
    of(name)
    kill_and_resume(project.root / "runs" / name, other, folder, [])
    assert difference(of(name), RunFolder(folder), with_log=False) == ""


@pytest.mark.parametrize(("name", "step"), [("Full", 6), ("FullEpoch", 4), ("FullLoop", 8)])
def test_it_is_asked_to_stop_and_goes_on(project, name, step):
    project.write("src/full.py", FULL)
    resumes(project, {**TREE, "trainer": {"class": f"full.{name}"}}, step)


SIGNALED = """
import os, signal, time
from full import FullEpoch, FullLoop


class Asked:
    def train_step(self, batch):
        if self.count == 5 and not os.environ.get("QUIET"):
            os.kill(os.getpid(), signal.SIGINT)
            while signal.getsignal(signal.SIGINT) is not signal.SIG_DFL:  # the main thread has yet to notice
                time.sleep(0.001)
        return super().train_step(batch)


class AskedEpoch(Asked, FullEpoch):
    pass


class AskedLoop(Asked, FullLoop):
    pass
"""


@pytest.mark.parametrize("name", ["AskedEpoch", "AskedLoop"])
def test_a_signal_leaves_at_the_next_batch_and_loses_that_epoch_only(project, monkeypatch, name):
    """It is asked in the second epoch: one epoch is committed, although no checkpoint was due."""
    import manyfit
    from manyfit.core.errors import Interrupted

    project.write("src/full.py", FULL)
    project.write("src/asked.py", SIGNALED)
    tree = {
        **TREE,
        "trainer": {"class": f"asked.{name}"},
        "train": {"epochs": 3, "device": "cpu", "every": {"checkpoint": "3ep"}},
    }
    with pytest.raises(Interrupted) as stopped:
        manyfit.train(tree, folder="runs/parts", callbacks=[])
    assert stopped.value.exit_code == 128 + signal.SIGINT
    found = RunFolder(project.root / "runs/parts").checkpoints()
    assert [each.step for each in found] == [4]
    monkeypatch.setenv("QUIET", "1")
    manyfit.train(tree, folder="runs/parts", callbacks=[])
    manyfit.train(tree, folder="runs/whole", callbacks=[])
    for run in ("parts", "whole"):
        (project.root / f"runs/{run}.trace").write_text("[0, []]\n")
    folders = [RunFolder(project.root / "runs" / run) for run in ("whole", "parts")]
    assert difference(*folders) == ""


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("Local", "'rounds' of train()"),
        pytest.param("Hidden", "noise (its closure holds 'drawn'", marks=pytest.mark.soak),
    ],
)
def test_what_cannot_be_kept_is_found_and_named(project, name, says):
    project.write("src/full.py", FULL)
    project.config({**TREE, "trainer": {"class": f"full.{name}"}})
    seen = []
    for finding in check_resume(project.run):  # which kills a run for each; the first that is wrong will do
        seen.append(finding)
        if not finding.ok and says in finding.detail:
            return
    pytest.fail(f"not found: {seen}")


PAUSES = '''
from full import Full


class Paused(Full):
    """What it learns depends on how often it is logged: it looks at sums that a log empties."""

    def train_step(self, batch):
        self.alpha = 0.01 * len(self._bench.learner.sums._recent)
        return super().train_step(batch)
'''


def test_a_trainer_that_depends_on_its_pauses_is_found(project):
    project.write("src/full.py", FULL)
    project.write("src/paused.py", PAUSES)
    project.config({**TREE, "trainer": {"class": "paused.Paused"}})
    found = next(check_resume(project.run))
    assert found.name == "logged and stored at other steps", found
    assert not found.ok, found
