"""Commands to a study: stop, resume, add and clone."""

import json

from tests.study.points import points

from manyfit.study.drive.commands import leave_command
from manyfit.study.executors.inline import Inline


def test_a_point_that_was_stopped_goes_on_with_all_its_seeds(lab):
    points(lab, 2)
    lab.sweep(only=["0"])
    leave_command(lab.folder, "stop", 1)
    lab.sweep()
    assert [p.state for p in lab.sweep().points] == ["finished", "stopped"]
    leave_command(lab.folder, "resume", 1)
    found = lab.sweep()
    assert [p.state for p in found.points] == ["finished", "finished"] and not found.unfinished


def test_a_point_that_was_removed_can_be_added(lab):
    points(lab, 2, search__seeds=1)
    lab.sweep()
    points(lab, 1, search__seeds=1)
    assert len(lab.sweep().points) == 1
    leave_command(lab.folder, "add", None, {"train.optimizer.lr": 1.0})
    assert len(lab.sweep().points) == 2


def test_commands_that_make_no_sense_are_set_aside(lab):
    lab.sweep(only=["0"])
    inbox = lab.folder / "inbox"
    (inbox / "1.json").write_text("{")
    (inbox / "2.json").write_text(json.dumps({"action": "stop", "point": 99}))
    (inbox / "3.json").write_text(json.dumps({"action": "add", "values": {"model.hiden": 3}}))
    (inbox / "4.json").write_text(json.dumps({"action": "clone", "point": 5, "weights": True}))
    lab.sweep(only=["0"])
    assert sorted(p.name for p in (inbox / "refused").glob("*.json")) == [
        "1.json",
        "2.json",
        "3.json",
        "4.json",
    ]
    assert "no checkpoint yet" in (inbox / "refused" / "4.json.txt").read_text()


def test_a_running_study_obeys(lab):
    """Commands come while the first trial is being trained, in the same process."""
    points(lab, 4, search__seeds=1, set={"train.epochs": 3})
    done = []

    class Busy(Inline):
        def wait(self, timeout=None, wake=()):
            if self._waiting and self._waiting[0].purpose == "train" and not done:
                done.append(1)
                leave_command(lab.folder, "stop", 3)
                leave_command(lab.folder, "add", None, {"train.optimizer.lr": 0.77})
            return super().wait(timeout, wake)

    found = lab.execute(lambda study, work, watch, trials: Busy(work, watch))
    assert [p.state for p in found.points] == ["finished", "finished", "finished", "stopped", "finished"]


def test_commands_are_checked_when_they_are_given(lab, cli):
    lab.sweep(only=["0"])
    assert cli("study", "add", lab.folder, "model.hiden=3").code == 2
    assert cli("study", "add", lab.folder, "seed=3").code == 2
    assert cli("study", "clone", lab.folder, "0", "nosuch=1").code == 2
    assert cli("study", "stop", lab.folder / "study.yaml", "0").code == 0
    assert (
        not list((lab.folder / "inbox").glob("*.json"))
        or len(list((lab.folder / "inbox").glob("*.json"))) == 1
    )
