"""Clusters that were started by other means, as a user starts them: with a token and without."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest
from tests.study.cluster.conftest import BIN, wait_for
from tests.study.cluster.test_faults import MODELS, ON, progress
from tests.study.test_traveling import assert_same, keep


def free_port():
    with socket.socket() as made:
        made.bind(("", 0))
        return made.getsockname()[1]


@pytest.fixture(params=["token", "disabled"])
def started(request, tmp_path_factory):
    """The address of a cluster that `ray start` has started for a user who has a token."""
    home = tmp_path_factory.mktemp("home")
    (home / ".ray").mkdir()
    (home / ".ray" / "auth_token").write_text("0123456789abcdef" * 4)
    without = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH", "RAY_ADDRESS")
    environment = {**{k: v for k, v in os.environ.items() if k not in without}, "HOME": str(home)}
    client = str(free_port())
    words = ["--port", str(free_port()), "--num-cpus", "2", "--include-dashboard=false", "--block"]
    words += ["--ray-client-server-port", client, "--min-worker-port", "0", "--max-worker-port", "0"]
    words += ["--disable-usage-stats"]
    process = subprocess.Popen(
        [BIN / "ray", "start", "--head", *words], env={**environment, "RAY_AUTH_MODE": request.param},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    address = ""
    for line in process.stdout:
        if "--address=" in line:
            address = line.partition("--address=")[2].strip().strip("'")
            break
    assert address
    yield address, environment, f"ray://127.0.0.1:{client}"
    process.terminate()
    process.communicate(timeout=60)


def run(words, lab, environment):
    found = subprocess.run(
        [BIN / "manyfit", *words], cwd=lab.root, env=environment, capture_output=True, text=True, timeout=240
    )
    return found.stdout + found.stderr, found.returncode


@pytest.mark.soak
def test_a_cluster_of_ray_start(started, lab, request):
    """Doctor, a study, and a secret that no file of the study or of Ray has; the same through Ray Client."""
    address, environment, client = started
    lab.project.write("src/leaky.py", LEAKY)
    tree = lab.project.changed(train__epochs=30)
    tree["model"] = {"class": "leaky.Net"}
    lab.project.config(tree)
    stop = {"class": "halving", "first": 20, "factor": 2}
    lab.write(search__seeds=1, space={"train.optimizer.lr": [0.001, 0.01]}, search__stop=stop)
    lab.sweep()
    inline = keep(lab, "inline")
    shown, code = run(["doctor", "--ray", address], lab, environment)
    assert code == 0, shown
    assert "Unauthenticated" not in shown
    secret = "s3cr3t-" + os.urandom(12).hex()
    secrets = {**environment, "KEY": secret}
    connections = [("direct", address, {}), ("client", client, {"RAY_AUTH_MODE": "token"})]
    if "token" not in request.node.name:  # two servers of Ray Client on one machine use the same ports
        connections.pop()
    for name, place, more in connections:
        on = {"class": "ray", "address": place, "environment": ["KEY"]}
        lab.write(
            search__seeds=1, space={"train.optimizer.lr": [0.001, 0.01]}, search__stop=stop, execute__on=on
        )
        output, code = run(["sweep", "studies/s"], lab, {**secrets, **more})
        assert code == 0, output
        assert secret not in output
        assert_same(keep(lab, name), inline)
    lab.write(search__seeds=1, space={"model.fails": [False, True]}, execute__on={**on, "address": address})
    output, code = run(["sweep", "studies/s"], lab, secrets)
    assert code == 1, output
    assert "the key is ${secret:KEY}" in output
    logs = [path.read_text() for path in (lab.folder / "trials").glob("*/output.log")]
    assert any("uses ${secret:KEY}" in text for text in logs)
    places = [lab.root, Path("/tmp/ray").resolve() / "session_latest", Path(environment["HOME"])]
    for place in places:
        for path in place.rglob("*"):
            if path.is_file() and not path.is_symlink():
                assert secret.encode() not in path.read_bytes(), path


@pytest.mark.soak
def test_two_studies_share_a_cluster(nodes, lab):
    """Both end with the table that one has alone, and one is given another share while it runs."""
    lab.project.write("src/slow.py", MODELS)
    tree = lab.project.changed(train__epochs=4)
    tree["model"] = {"class": "slow.Slow", "hidden": 8}
    lab.project.config(tree)
    common = {"search__seeds": 1, "space": {"train.optimizer.lr": [0.001, 0.01, 0.03, 0.1]}}
    lab.write(**common)
    lab.sweep()
    inline = keep(lab, "inline")
    lab.write(**common, execute__on=ON, execute__workers=1)
    other = lab.root / "studies" / "t"
    shutil.copytree(lab.folder, other)
    made = nodes.add(cpus=2)
    wait_for(lambda: nodes.cpus() == 2)
    try:
        drivers = [nodes.start(["sweep", f"studies/{name}"], lab.root, PACE="0.05") for name in "st"]
        wait_for(lambda: progress(lab.folder) > 0 or drivers[0].poll() is not None)
        scaled = nodes.start(["study", "scale", "studies/s", "2"], lab.root)
        assert scaled.wait(60) == 0, scaled.communicate()[0]
        for driver in drivers:
            output = driver.communicate(timeout=200)[0]
            assert driver.returncode == 0, output
    finally:
        nodes.kill(made)
    wait_for(lambda: nodes.cpus() == 0)
    assert_same(keep(lab, "first"), inline)
    shutil.rmtree(lab.folder)
    other.rename(lab.folder)
    assert_same(keep(lab, "second"), inline)


LEAKY = """
import os

from torch import nn


class Net(nn.Module):
    def __init__(self, fails: bool = False):
        super().__init__()
        self.layer, self.fails, self.seen = nn.Linear(64, 10), fails, 0

    def forward(self, x):
        self.seen += self.training
        if self.seen == 60:
            print("uses", os.environ.get("KEY"), flush=True)
            if self.fails:
                raise ValueError(f"the key is {os.environ['KEY']}")
        return self.layer(x.flatten(1))
"""
