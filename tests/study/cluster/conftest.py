"""Ray clusters for tests: one local node for most of them, several nodes where one is to be lost."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("ray", reason="the extra ray is not installed")

from manyfit.study.executors.ray_cluster import Cluster

BIN = Path(sys.executable).parent


@pytest.fixture(scope="session")
def ray_here():
    """A local cluster with two CPUs, which executors of this process use."""
    cluster = Cluster("local", 2)
    yield cluster
    cluster.close()


def wait_for(condition, seconds=120.0):
    """Wait until something is the case."""
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit, "it did not happen in time"
        time.sleep(0.1)


def find_workers():
    """Return the actors on this machine, and the processes that they supervise."""
    found = {each for each in psutil.process_iter(["name"]) if "RayWorker" in (each.info["name"] or "")}
    for each in list(found):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            found |= set(each.children(recursive=True))
    return found


def is_alive(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Nodes:
    """A cluster of several nodes on this machine, each with a file system of its own, as far as it can tell."""

    def __init__(self, place):
        from ray.cluster_utils import Cluster

        self.place = place
        self._count = 0
        self.head = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self.address = self.head.address

    def add(self, cpus=1, **options):
        """Add a node with a home, a working directory and a temporary folder of its own."""
        self._count += 1
        home = self.place / f"node-{self._count}"
        (home / "tmp").mkdir(parents=True)
        token = os.environ.get("RAY_AUTH_TOKEN_PATH", str(Path("~/.ray/auth_token").expanduser()))
        environment = {"HOME": str(home), "TMPDIR": str(home / "tmp"), "RAY_AUTH_TOKEN_PATH": token}
        before = Path.cwd()
        os.chdir(home)
        try:
            return self.head.add_node(num_cpus=cpus, env_vars=environment, **options)
        finally:
            os.chdir(before)

    def kill(self, node):
        """Kill a node with everything on it, as a power failure would."""
        self.head.remove_node(node, allow_graceful=False)

    def cpus(self):
        """The CPUs of all nodes that are alive, as the cluster knows them."""
        alive = [node for node in self.head.global_state.node_table() if node["Alive"]]
        return sum(node["Resources"].get("CPU", 0) for node in alive)

    def start(self, words, folder, **environment):
        """Start a command of manyfit that uses this cluster."""
        here = {name: value for name, value in os.environ.items() if name != "RAY_AUTH_MODE"}
        environment = {**here, "RAY_ADDRESS": self.address, **environment}
        return subprocess.Popen(
            [BIN / "manyfit", *words], cwd=folder, env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def close(self):
        self.head.shutdown()


@pytest.fixture(scope="module")
def nodes():
    place = tempfile.mkdtemp(prefix="mf-")  # the names of sockets in it must not be long
    made = Nodes(Path(place))
    yield made
    made.close()
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def hidden(lab):
    """A folder outside of the project, which is empty on islands, too."""
    found = lab.root.parent / f"{lab.root.name}-hidden"
    found.mkdir()
    return found


@pytest.fixture
def islands(nodes, lab, hidden):
    """Start nodes on which the folder of the project is empty; return their homes."""
    hide, started = f"mount -t tmpfs none '{lab.root}' && mount -t tmpfs none '{hidden}'", []
    try:
        subprocess.run(["unshare", "-m", "sh", "-c", hide], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this user cannot hide a folder from a process (unshare)")

    def start(count):
        homes = [Path(tempfile.mkdtemp(prefix="island-", dir=nodes.place)) for _ in range(count)]
        for home in homes:
            (home / "tmp").mkdir()
            token = os.environ.get("RAY_AUTH_TOKEN_PATH", str(Path("~/.ray/auth_token").expanduser()))
            own = {"HOME": str(home), "TMPDIR": str(home / "tmp"), "RAY_AUTH_TOKEN_PATH": token}
            ray = f"{BIN}/ray start --address {nodes.address} --num-cpus 1 --block --disable-usage-stats"
            started.append(subprocess.Popen(
                ["unshare", "-m", "sh", "-c", f"{hide} && cd '{home}' && exec {ray}"],
                env={**os.environ, **own}, start_new_session=True, stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            ))  # fmt: skip
            wait_for(lambda: nodes.cpus() == len(started))
        return homes

    yield start
    for node in started:
        node.terminate()
        node.wait()
    wait_for(lambda: nodes.cpus() == 0)
