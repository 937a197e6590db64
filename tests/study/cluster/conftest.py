"""Ray clusters for tests: one local node for most of them, several nodes where one is to be lost."""

import pytest

pytest.importorskip("ray", reason="the extra ray is not installed")

from manyfit.study.executors.ray_cluster import Cluster


@pytest.fixture(scope="session")
def ray_here():
    """A local cluster with two CPUs, which executors of this process use."""
    cluster = Cluster("local", 2)
    yield cluster
    cluster.close()
