"""Workers on nodes that cannot be used, or that are not there yet; and the output of a worker."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from manyfit.core.errors import Interrupted, RunFailed, UsageError
from manyfit.core.signals import Watch
from manyfit.study.executors import ray_executor, ray_worker
from manyfit.study.executors.ray_cluster import Cluster, Need, Share
from manyfit.study.executors.ray_executor import RayExecutor
from manyfit.study.work.units import Outcome, Trial, Unit
from manyfit.testing.executor import work


def wait_for(executor, condition, seconds=60.0):
    limit = time.monotonic() + seconds
    while not condition():
        executor.wait(0.2)
        assert time.monotonic() < limit


def test_a_node_that_cannot_be_used_does_not_end_a_study(ray_here, monkeypatch, caplog):
    """Workers that are ready continue, and others are requested again after a while."""
    versions, requests = ray_executor.versions_here(), []
    request = RayExecutor._request
    monkeypatch.setattr(RayExecutor, "_request", lambda self: requests.append(0) or request(self))
    monkeypatch.setattr(ray_executor, "BACK_OFF", 1.0)
    monkeypatch.setattr(ray_executor, "MOST_FAILED", 2)
    executor = RayExecutor(work, Cluster("local"), Share(1, 2, Need(0.5)))
    try:
        monkeypatch.setattr(ray_executor, "versions_here", lambda: {**versions, "torch": "0.1"})
        executor.resize(2)
        wait_for(executor, lambda: executor._failed >= ray_executor.MOST_FAILED)
        assert "a node of the Ray cluster is not used: versions differ" in caplog.text
        count = len(requests)
        executor.wait(0.3)
        assert len(requests) == count, "it does not request workers all the time"
        executor.submit(Unit((Trial("t", "", {}, 0),)))
        wait_for(executor, lambda: executor._names["worker-0"].unit is None)
        monkeypatch.setattr(ray_executor, "versions_here", lambda: versions)
        wait_for(executor, lambda: executor.slots == 2)
    finally:
        executor.close()


class Broken:
    """An actor on a node whose disk is full."""

    def __init__(self):
        raise OSError("no space left on device")

    def introduce(self, wanted, probe):
        pass


def test_workers_that_fail_one_after_another_are_an_error(ray_here, monkeypatch):
    monkeypatch.setattr(ray_executor, "RayWorker", Broken)
    with pytest.raises(RunFailed, match=r"5 workers in a row failed on the Ray cluster: .*no space left"):
        RayExecutor(work, Cluster("local"), Share(1, 1, Need(0.5)))


def test_a_study_waits_for_nodes_only_if_the_cluster_adds_them(ray_here, monkeypatch):
    need, watch = Need(1.0, custom={"large": 1.0}), Watch()
    with pytest.raises(
        UsageError, match=r"no node of the Ray cluster has 1 CPU, 1 large .* autoscales: true"
    ):
        RayExecutor(work, Cluster("local"), Share(1, 1, need))

    def interrupt(text, *given):
        assert text % given == "waiting for a worker on the Ray cluster: each needs 1 CPU, 1 large"
        watch.number = 2

    monkeypatch.setattr(ray_executor, "SAY", 0.5)
    monkeypatch.setattr(ray_executor.log, "warning", interrupt)
    with pytest.raises(Interrupted, match="waiting for the cluster"):
        RayExecutor(work, Cluster("local"), Share(1, 1, need, may_wait=True), watch=watch)


def test_output_that_is_cut_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(ray_worker, "MOST_OUTPUT", 4)
    monkeypatch.setattr(ray_worker, "keep_sockets_in", lambda folder: None)  # for processes of their own
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    worker = ray_worker.RayWorker()
    try:
        for text, found in (("123456", "[2 bytes of output were left out]\n3456"), ("1234", "1234")):
            (worker._scratch / "t").mkdir()
            (worker._scratch / "t" / "output.log").write_text(text)
            assert worker._add_output(Outcome("t")).output == found
    finally:
        worker.close()


def test_other_versions_are_an_error_at_the_start(ray_here, monkeypatch):
    monkeypatch.setattr(ray_executor, "versions_here", lambda: {"torch": "0.1"})
    with pytest.raises(UsageError, match=r"cannot be used: versions differ: .*: torch .* \(here: 0.1\)"):
        RayExecutor(work, Cluster("local"), Share(1, 1, Need(0.5)))


LISTENS = """
import psutil

from manyfit.study.executors.ray_cluster import Cluster

cluster = Cluster("local", 1)
for process in psutil.Process().children(recursive=True):
    for each in process.net_connections("inet"):
        if each.status == psutil.CONN_LISTEN:
            print(each.laddr.ip, process.name())
cluster.close()
"""


def test_a_local_cluster_listens_on_loopback_only():
    own = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", LISTENS], env=own, capture_output=True, text=True, check=True
    )
    found = [line.split() for line in done.stdout.splitlines()]
    assert {"gcs_server", "raylet"} <= {name for _, name in found}, done.stderr
    assert {address for address, _ in found} <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, found
    assert not any("dashboard" in name.lower() for _, name in found)
