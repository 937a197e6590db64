"""Rules that stop points early, and what a rule of your own is made of.

| name | what it is |
|---|---|
| `Halving`, `Asha`, `Median`, `Patience` | rules that ship with manyfit |
| `Stopper` | the protocol of a rule: `pauses` and `decide` |
| `Board`, `View` | what a rule is given: the points of a study and their results |
| `Go`, `Stop`, `Add` | what a rule may decide |
"""

from manyfit.study.search.decisions import Add, Board, Go, Stop, Stopper, View
from manyfit.study.search.stoppers import Asha, Halving, Median, Patience

__all__ = ["Add", "Asha", "Board", "Go", "Halving", "Median", "Patience", "Stop", "Stopper", "View"]
