"""The executor on Ray keeps the contract of executors."""

from __future__ import annotations

import pytest
from tests.study.cluster.conftest import find_workers, is_alive

from manyfit.study.executors.ray_cluster import Cluster, Need, Share
from manyfit.study.executors.ray_executor import RayExecutor
from manyfit.testing import ExecutorContract
from manyfit.testing.executor import work


class TestRay(ExecutorContract):
    seen = frozenset()
    """Processes of workers so far: children of an actor that has ended have another parent."""

    @pytest.fixture(autouse=True)
    def _cluster(self, ray_here):
        pass

    def make(self):
        return RayExecutor(work, Cluster("local"), Share(2, 2, Need(1.0)))

    def workers(self):
        self.seen |= find_workers()
        return set(filter(is_alive, self.seen))
