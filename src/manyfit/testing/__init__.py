"""Contracts: test classes that every source, learner and executor passes, manyfit's own and yours.

Subclass one in a test file, give it what to test, and let pytest run it::

    class TestMySource(SourceContract):
        def make(self) -> Source:
            return MySource("data/train.csv")
"""

from manyfit.testing.executor import ExecutorContract
from manyfit.testing.learner import LearnerContract
from manyfit.testing.source import SourceContract

__all__ = ["ExecutorContract", "LearnerContract", "SourceContract"]
