"""Executors of the units of a study. Select one with `execute.on`, or write your own.

| name | meaning |
|---|---|
| `auto`, `inline`, `processes`, `ray` | the executors of manyfit, selected by `execute.on` |
| `Executor` | the base class of an executor; `manyfit.testing.ExecutorContract` tests it |
| `Job` | the input of an executor: the study, the function that executes a unit, and stop requests |
| `Unit`, `Trial`, `Position` | what it executes |
| `Outcome`, `Failure`, `Progress` | what it returns and reports |
| `attempt`, `UnitWatch` | helpers to execute a unit in your own process |
"""

from manyfit.core.position import Position
from manyfit.study.executors.base import Executor, Job, attempt
from manyfit.study.executors.choose import auto, inline, processes, ray
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
    "ray",
]
