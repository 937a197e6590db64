"""Contracts: test classes that every source, learner and executor must pass, including your own.

Subclass one in a test file, implement its factory methods, and run it with pytest::

    class TestMySource(SourceContract):
        def make(self) -> Source:
            return MySource("data/train.csv")
"""

from manyfit.testing.executor import ExecutorContract
from manyfit.testing.learner import LearnerContract
from manyfit.testing.source import SourceContract

__all__ = ["ExecutorContract", "LearnerContract", "SourceContract"]
