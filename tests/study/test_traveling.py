"""Trials that are trained by workers without their run folders end as if the workers had them."""

from __future__ import annotations

import json
import math
import shutil

import pytest
import torch

from manyfit.cli import main
from manyfit.core.errors import FolderError
from manyfit.executors import Failure, Outcome
from manyfit.run.travel.visit import Delivery
from manyfit.store.folder import RunFolder
from manyfit.study.drive.driver import StudyMoved
from manyfit.study.executors.choose import worker_places
from manyfit.study.executors.inline import Inline
from manyfit.study.executors.processes import Processes
from manyfit.study.ledger.ledger import Ledger
from manyfit.study.ledger.reader import read_only
from manyfit.study.status import status


class Traveling(Processes):
    """Worker processes that may not use run folders."""

    travels = True


class TravelingInline(Inline):
    """The same in this process."""

    travels = True


def travel(study, work, watch, trials):
    return Traveling(work, worker_places(study), 60.0)


def travel_inline(study, work, watch, trials):
    return TravelingInline(work, watch)


def contents(run):
    """What must not depend on how a run was executed."""
    state = run.checkpoints()[-1].load()
    tensors = {name: tensor.numpy().tobytes() for name, tensor in state.tensors.items()}
    notes = [(each.step, each.note.measured, dict(each.note.metrics)) for each in run.checkpoints()]
    events = [(e.step, e.epoch, dict(e.values)) for e in run.events()]
    summary = {k: v for k, v in run.summary().items() if k != "fingerprint"}
    return tensors, state.values, notes, events, summary


def keep(lab, name):
    """Move the study away, and return its table and its runs."""
    found = lab.table(), {path.name: contents(RunFolder(path)) for path in (lab.folder / "trials").iterdir()}
    shutil.copytree(lab.folder, lab.root / name)
    lab.clear()
    return found


def assert_same(found, expected):
    assert found[0] == expected[0]
    assert found[1].keys() == expected[1].keys()
    for trial, parts in expected[1].items():
        for part, wanted in zip(found[1][trial], parts, strict=True):
            assert part == wanted, trial


SEARCHES = {
    "grid": {},
    "halving": {"search__stop": {"class": "halving", "first": 1, "factor": 2}},
}


@pytest.mark.parametrize("search", SEARCHES)
def test_a_study_whose_trials_travel_is_the_same(lab, search):
    lab.project.config(lab.project.changed(train__epochs=4, model__dropout=0.2))
    lab.write(search__seeds=1, execute__workers=2, **SEARCHES[search])
    lab.sweep()
    inline, best = keep(lab, "inline"), (lab.root / "inline" / "best" / "reports" / "test.csv").read_bytes()
    lab.write(search__seeds=1, execute__on="processes", execute__workers=2, **SEARCHES[search])
    lab.execute(travel)
    assert (lab.folder / "best" / "reports" / "test.csv").read_bytes() == best
    assert_same(keep(lab, "away"), inline)


@pytest.mark.parametrize("delay", [0, 1])
def test_what_was_delivered_on_the_way_is_not_trained_again(lab, monkeypatch, delay):
    """The worker of a trial dies in its middle: the trial continues from what the driver has.

    With a delay, states are delivered when rows after them are already in the log.
    """
    whole = Delivery.on_boundary
    monkeypatch.setattr("manyfit.study.work.training.BETWEEN", 0.0)  # every step is reported

    def deliver(delivery, cohort, boundary, rows):
        delivery._last = -math.inf if boundary.step % 4 == delay else math.inf
        whole(delivery, cohort, boundary, rows)

    monkeypatch.setattr(Delivery, "on_boundary", deliver)
    every = {"checkpoint": "1ep", "log": "1ba", "validate": "2ba"}
    tree = lab.project.changed(train__epochs=6, train__every=every)
    lab.project.config(tree)
    lab.write(search__seeds=1, space={"model.hidden": [4]})
    lab.sweep()
    inline = keep(lab, "inline")
    steps = inline[0][0][4]

    class Lost(TravelingInline):
        """A worker that is lost in the middle of its first unit."""

        is_lost = False

        def wait(self, timeout=None, wake=()):
            tell = self.tell
            self.tell = lambda progress: tell(progress) if is_early(progress) or self.is_lost else None
            found = super().wait(timeout, wake)
            self.tell = tell
            if found and not self.is_lost and found[0].parcel is not None:
                self.is_lost = True
                return [Outcome(found[0].trial, failure=Failure("preempted", "lost", process_died=True))]
            return found

    def is_early(progress):
        return progress.parcel is None or progress.parcel.states[-1][0].step <= steps // 2

    lab.execute(lambda study, work, watch, trials: Lost(work, watch))
    trained = lab.rows("select steps from unit_trials order by unit")
    assert [row[0] for row in trained if row[0]] == [steps // 2, steps // 2]
    assert status(lab.folder)["repeated_steps"] == steps - steps // 2
    assert_same(keep(lab, "away"), inline)


def test_steps_that_are_lost_with_the_driver_are_counted(lab, caplog, capsys):
    """The ledger has what trials had reported; their folders have what was committed."""
    lab.project.config(lab.project.changed(train__epochs=2))
    lab.write(search__seeds=1, space={"model.hidden": [4]})
    lab.execute(travel_inline)
    ((trial, step),) = lab.rows("select id, step from trials")
    assert status(lab.folder)["repeated_steps"] == 0
    with Ledger(lab.folder / "ledger.db") as ledger:
        ledger.set("reported", {trial: step + 5})
    for _ in range(2):  # they are counted once
        lab.execute(travel_inline, "set.train.epochs=3")
        assert status(lab.folder)["repeated_steps"] == 5
    assert caplog.text.count("5 steps must be trained again") == 1
    shutil.rmtree(lab.folder / "trials" / trial)
    lab.execute(travel_inline, "set.train.epochs=3")
    assert status(lab.folder)["repeated_steps"] == 5, "what somebody has removed was not lost"
    with pytest.raises(SystemExit):
        main(["status", str(lab.folder)])
    assert "5 steps or more, lost with workers" in capsys.readouterr().out


def test_a_study_that_is_removed_while_it_runs_is_not_made_anew(lab, monkeypatch):
    """A folder that is created at the same place may get the same number, and is another one all the same."""
    monkeypatch.setattr("manyfit.study.work.training.BETWEEN", 0.0)

    class Removes(TravelingInline):
        def wait(self, timeout=None, wake=()):
            tell = self.tell

            def remove(progress):
                if lab.folder.exists() and not removed:
                    removed.append(lab.folder.stat().st_ino)
                    shutil.rmtree(lab.folder)
                    others = [lab.folder.with_name(f"other-{i}") for i in range(500)]
                    for other in others:
                        other.mkdir()
                    same = [other for other in others if other.stat().st_ino == removed[0]]
                    (same or others)[0].rename(lab.folder)
                tell(progress)

            self.tell = remove
            found = super().wait(timeout, wake)
            self.tell = tell
            return found

    removed = []
    lab.project.config(lab.project.changed(train__epochs=4, train__every={"log": "1ba"}))
    lab.write(search__seeds=1)
    with pytest.raises(StudyMoved, match="was moved or removed while the study was running"):
        lab.execute(lambda study, work, watch, trials: Removes(work, watch))
    assert not (lab.folder / "trials").exists()


def test_a_trial_that_had_ended_is_not_trained_on(lab):
    """The log says that it has stopped early; the ledger did not hear of it."""
    stop = {"metric": "val_loss", "mode": "min", "patience": "1ep", "min_delta": 100}
    lab.project.config(lab.project.changed(train__epochs=6, train__stop=stop))
    lab.write(search__seeds=1, space={"model.hidden": [4]})
    lab.execute(travel_inline)
    (trial,) = (lab.folder / "trials").iterdir()
    before = contents(RunFolder(trial))
    assert before[3][-1][1] == 2.0
    for file in lab.folder.glob("ledger.db*"):
        file.unlink()
    lab.execute(travel_inline)
    assert contents(RunFolder(trial))[:4] == before[:4]


def test_the_clone_of_a_point_takes_its_weights_along(lab):
    lab.project.config(lab.project.changed(train__epochs=2))
    lab.write(search__seeds=1, space={"model.hidden": [4]})
    lab.execute(travel_inline)
    from manyfit.study.drive.commands import leave_command

    leave_command(lab.folder, "clone", 0, {"train.optimizer.lr": 0.02}, weights=True)
    lab.execute(travel_inline)
    cloned = [p for p in (lab.folder / "trials").iterdir() if "warm_start" in (p / "config.yaml").read_text()]
    assert len(cloned) == 1
    first = json.loads((cloned[0] / "metrics.jsonl").read_text().splitlines()[0])
    assert torch.isfinite(torch.tensor(first["train_loss"]))


def test_output_of_the_code_is_in_the_folder_of_its_trial(lab):
    tree = lab.project.changed(train__epochs=1)
    tree["model"] = {"class": "talking.Net"}
    lab.project.write("src/talking.py", TALKING)
    lab.project.config(tree)
    lab.write(search__seeds=1, space={"model.words": ["first", "second"]})
    lab.execute(travel)
    found = {path.joinpath("output.log").read_text() for path in (lab.folder / "trials").iterdir()}
    assert found == {"first\n", "second\n"}


def test_a_ledger_that_is_only_just_created_is_not_damaged(tmp_path):
    (tmp_path / "ledger.db").touch()
    with pytest.raises(FolderError, match="only just being started"):
        read_only(tmp_path / "ledger.db")


TALKING = """
from torch import nn


class Net(nn.Module):
    def __init__(self, words: str = ""):
        super().__init__()
        self.layer, self.words = nn.Linear(64, 10), words

    def forward(self, x):
        if self.training and self.words:
            print(self.words, flush=True)
            self.words = ""
        return self.layer(x.flatten(1))
"""
