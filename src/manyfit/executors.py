"""Executors: where the units of a study are worked on. Name one by `execute.on`, or write your own.

| name | what it is |
|---|---|
| `auto`, `inline`, `processes` | executors that ship with manyfit, by what a study asks for |
| `Executor` | the base class of an executor; `manyfit.testing.ExecutorContract` tests it |
| `Job` | what an executor is given: the study, what to do with a unit, and whether to stop |
| `Unit`, `Trial`, `Position` | what it works on |
| `Outcome`, `Failure`, `Progress` | what it answers |
| `attempt`, `UnitWatch` | help to work on a unit in a process of your own |
"""

from manyfit.core.position import Position
from manyfit.study.executors.base import Executor, Job, attempt
from manyfit.study.executors.choose import auto, inline, processes
from manyfit.study.work.unit_watch import UnitWatch
from manyfit.study.work.units import Failure, Outcome, Progress, Trial, Unit

__all__ = [
    "Executor",
    "Failure",
    "Job",
    "Outcome",
    "Position",
    "Progress",
    "Trial",
    "Unit",
    "UnitWatch",
    "attempt",
    "auto",
    "inline",
    "processes",
]
