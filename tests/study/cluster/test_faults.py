"""Nodes are lost and added, and the driver is killed: the table is the one of an undisturbed study."""

from __future__ import annotations

import signal

import pytest
from tests.study.cluster.conftest import find_workers, is_alive, wait_for
from tests.study.test_hop_matrix import write_study
from tests.study.test_traveling import assert_same, keep

from manyfit.core.errors import FolderError
from manyfit.study.ledger.reader import read_only
from manyfit.study.status import status

MODELS = """
import os
import time

import torch
from torch import nn


class Slow(nn.Module):
    def __init__(self, hidden: int = 8):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, hidden), nn.Dropout(0.2), nn.ReLU(), nn.Linear(hidden, 10))

    def forward(self, x):
        if self.training:
            time.sleep(float(os.environ.get("PACE", "0")))
        return self.layers(x.flatten(1))
"""
ON = {"class": "ray", "environment": ["PACE"]}
EPOCH = 32
"""Steps in an epoch."""
KINDS = {
    "plain": ({}, {}),
    "halving": ({}, {"search__stop": {"class": "halving", "first": 2, "factor": 2}}),
    "hopping": ({"data__shards": 4}, {"execute__hop": True}),
}


def progress(folder):
    """The steps that the ledger knows of."""
    try:
        return sum(trial.step for point in read_only(folder / "ledger.db")[0] for trial in point.trials)
    except FolderError:
        return 0


def write_kind(lab, kind, on):
    """Write the study of a kind: with torch, or with prepared rows and another learner."""
    if kind not in KINDS:
        write_study(lab.project, kind, 3, pause=0.1, on=on)
        return
    base, study = KINDS[kind]
    lab.project.write("src/slow.py", MODELS)
    every = {"checkpoint": "1ep", "log": "1ba"}
    tree = lab.project.changed(data__batch_size=2, train__epochs=6, train__every=every, **base)
    tree["model"] = {"class": "slow.Slow", "hidden": 8}
    lab.project.config(tree)
    rates = [0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.1]
    lab.write(search__seeds=1, space={"train.optimizer.lr": rates}, execute__on=on, **study)


@pytest.mark.soak
@pytest.mark.parametrize("kind", [*KINDS, "spec", "keras"])
def test_a_node_is_lost_one_is_added_and_the_driver_is_killed(lab, nodes, kind):
    if kind == "keras":
        pytest.importorskip("tensorflow")
    write_kind(lab, kind, "inline")
    lab.sweep()
    total = progress(lab.folder)
    inline = keep(lab, "inline")

    write_kind(lab, kind, ON)
    first, second = nodes.add(), nodes.add()
    words = ["sweep", "studies/s"]
    driver = nodes.start(words, lab.root, PACE="0.03")
    try:
        wait_for(lambda: progress(lab.folder) > 0 or driver.poll() is not None)
        nodes.kill(first)
        third = nodes.add()
        at = progress(lab.folder)
        wait_for(lambda: progress(lab.folder) > at or driver.poll() is not None)
        assert driver.poll() is None, driver.communicate()[0]
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        assert progress(lab.folder) < total
        driver = nodes.start(words, lab.root, PACE="0")
        output = driver.communicate(timeout=240)[0]
        assert driver.returncode == 0, output
    finally:
        driver.kill()
        for node in (second, third):
            nodes.kill(node)
    repeated = status(lab.folder)["repeated_steps"]
    print(f"{kind}: {repeated} of {total} steps were repeated")
    if kind in KINDS:  # trials of three workers, each with what it has trained between two deliveries
        assert repeated <= 3 * 2 * EPOCH, output
        assert not repeated or f"{repeated} steps or more" in output
    assert_same(keep(lab, "ray"), inline)


@pytest.mark.soak
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_command_that_is_ended_leaves_no_worker_behind(lab, nodes, number):
    write_kind(lab, "plain", ON)
    made = nodes.add(cpus=2)
    wait_for(lambda: nodes.cpus() == 2)
    driver = nodes.start(["sweep", "studies/s"], lab.root, PACE="0.05")
    try:
        wait_for(lambda: find_workers() or driver.poll() is not None)
        seen = set()
        wait_for(lambda: seen.update(find_workers()) or progress(lab.folder) or driver.poll() is not None)
        assert driver.poll() is None, driver.communicate()[0]
        driver.send_signal(number)
        output = driver.communicate(timeout=60)[0]
        assert driver.returncode == (-number if number == signal.SIGKILL else 128 + number), output
        assert seen
        wait_for(lambda: not any(map(is_alive, seen)) and not find_workers(), 30)
    finally:
        driver.kill()
        nodes.kill(made)
        wait_for(lambda: nodes.cpus() == 0)
