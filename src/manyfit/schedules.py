"""The learning rate schedules of manyfit. Refer to them by short name, or as `manyfit.schedules.<name>`."""

from manyfit.learn.schedules import ByEpoch, LogSchedule, Triangular, warmup

__all__ = ["ByEpoch", "LogSchedule", "Triangular", "warmup"]
