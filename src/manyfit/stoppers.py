"""Stoppers, and the types for writing your own.

| name | meaning |
|---|---|
| `Halving`, `Asha`, `Median`, `Patience` | the stoppers of manyfit |
| `Stopper` | the protocol of a stopper: `pauses` and `decide` |
| `Board`, `View` | the input of a stopper: the points of a study and their results |
| `Go`, `Stop`, `Add` | the decisions of a stopper |
"""

from manyfit.study.search.decisions import Add, Board, Go, Stop, Stopper
from manyfit.study.search.standings import View
from manyfit.study.search.stoppers import Asha, Halving, Median, Patience

__all__ = ["Add", "Asha", "Board", "Go", "Halving", "Median", "Patience", "Stop", "Stopper", "View"]
