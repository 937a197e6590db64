"""Trials train in one pass on Ray as in one process."""

from __future__ import annotations

import threading

import pytest
from tests.study.cluster.conftest import find_workers, wait_for
from tests.study.cluster.test_faults import MODELS, ON, progress
from tests.study.test_fusing import fused
from tests.study.test_traveling import assert_same, keep

RATES = {"train.optimizer.lr": [0.001, 0.003, 0.01, 0.03]}


@pytest.mark.parametrize("hop", [False, True])
def test_the_same_bits_as_inline(lab, ray_here, hop):
    lab.project.config(lab.project.changed(train__epochs=3, model__dropout=0.2, data__shards=2))
    common = {"search__seeds": 1, "space": RATES, "execute__hop": hop, "execute__fuse": 64}
    lab.write(**common)
    lab.sweep()
    assert fused(lab) == 4
    inline = keep(lab, "inline")
    lab.write(**common, execute__on="ray", execute__workers=2)
    lab.sweep()
    assert fused(lab) == 4
    assert_same(keep(lab, "ray"), inline)


@pytest.mark.parametrize("hop", [False, pytest.param(True, marks=pytest.mark.soak)])
def test_a_group_whose_worker_is_killed_goes_on_together(lab, ray_here, monkeypatch, hop):
    monkeypatch.setenv("PACE", "0.05")
    lab.project.write("src/slow.py", MODELS)
    shards = {"data__shards": 2} if hop else {}
    tree = lab.project.changed(train__epochs=6, train__every={"checkpoint": "1ep"}, **shards)
    tree["model"] = {"class": "slow.Slow", "hidden": 8}
    lab.project.config(tree)
    common = {"search__seeds": 1, "space": RATES, "execute__hop": hop}
    lab.write(**common, execute__fuse=64)
    lab.sweep()
    inline = keep(lab, "inline")
    killed = []

    def kill_a_worker():
        wait_for(lambda: progress(lab.folder) > 0)
        actor = next(each for each in find_workers() if "RayWorker" in each.name())
        actor.kill()
        killed.append(actor)

    lab.write(**common, execute__on=ON, execute__workers=1, execute__fuse=64)
    thread = threading.Thread(target=kill_a_worker)
    thread.start()
    lab.sweep()
    thread.join()
    assert killed
    assert fused(lab) == 4
    sizes = lab.rows(
        "select count(*) from unit_trials join units on unit=number where purpose='train' group by unit"
    )
    assert {size for (size,) in sizes} == {2 if hop else 4}  # hopping, two begin at each shard
    assert_same(keep(lab, "ray"), inline)
