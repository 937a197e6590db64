"""A study on Ray has the table that it has in one process."""

from __future__ import annotations

import threading

import pytest
from tests.study.cluster.conftest import find_workers, wait_for
from tests.study.cluster.test_faults import MODELS, ON, progress
from tests.study.test_traveling import SEARCHES, assert_same, keep


@pytest.mark.parametrize("search", SEARCHES)
def test_the_same_table_as_inline(lab, ray_here, search):
    lab.project.config(lab.project.changed(train__epochs=4, model__dropout=0.2))
    lab.write(search__seeds=1, **SEARCHES[search])
    lab.sweep()
    best = (lab.folder / "best" / "reports" / "test.csv").read_bytes()
    inline = keep(lab, "inline")
    lab.write(search__seeds=1, execute__on="ray", execute__workers=2, **SEARCHES[search])
    lab.sweep()
    assert (lab.folder / "best" / "reports" / "test.csv").read_bytes() == best
    assert_same(keep(lab, "ray"), inline)


def test_hopping(lab, ray_here):
    lab.project.config(lab.project.changed(data__shards=3, train__epochs=2, model__dropout=0.2))
    lab.write(search__seeds=1, execute__hop=True)
    lab.sweep()
    inline = keep(lab, "inline")
    lab.write(search__seeds=1, execute__hop=True, execute__on="ray", execute__workers=2)
    lab.sweep()
    assert_same(keep(lab, "ray"), inline)


def test_an_exception_on_a_node_has_the_file_and_line_of_the_user(lab, ray_here):
    lab.project.write("src/broken.py", BROKEN)
    tree = lab.project.changed(train__epochs=30)
    tree["model"] = {"class": "broken.Net"}
    lab.project.config(tree)
    lab.write(search__seeds=1, space={"model.fails": [False, True]}, execute__on="ray", execute__workers=2)
    study = lab.sweep()
    assert study.failures == {"user error": 1}
    (failed,) = [path for path in (lab.folder / "trials").iterdir() if (path / "failure.json").exists()]
    assert f"{lab.root}/src/broken.py:13" in (failed / "failure.json").read_text()
    assert "about to fail" in (failed / "output.log").read_text()
    assert len(study.ranked) == 1


def test_a_worker_that_is_killed_costs_nothing_but_time(lab, ray_here, monkeypatch):
    monkeypatch.setenv("PACE", "0.05")
    lab.project.write("src/slow.py", MODELS)
    tree = lab.project.changed(train__epochs=6, train__every={"checkpoint": "1ep"})
    tree["model"] = {"class": "slow.Slow", "hidden": 8}
    lab.project.config(tree)
    common = {"search__seeds": 1, "space": {"train.optimizer.lr": [0.001, 0.01, 0.1]}}
    lab.write(**common)
    lab.sweep()
    inline = keep(lab, "inline")
    killed = []

    def kill_a_worker():
        wait_for(lambda: progress(lab.folder) > 0)
        actor = next(each for each in find_workers() if "RayWorker" in each.name())
        actor.kill()
        killed.append(actor)

    lab.write(**common, execute__on=ON, execute__workers=2)
    thread = threading.Thread(target=kill_a_worker)
    thread.start()
    lab.sweep()
    thread.join()
    assert killed
    assert_same(keep(lab, "ray"), inline)


BROKEN = """
from torch import nn


class Net(nn.Module):
    def __init__(self, fails: bool = False):
        super().__init__()
        self.layer, self.fails, self.seen = nn.Linear(64, 10), fails, 0

    def forward(self, x):
        self.seen += self.training
        if self.fails and self.seen > 60:
            print("about to fail", flush=True)
            raise ValueError("on purpose")
        return self.layer(x.flatten(1))
"""
