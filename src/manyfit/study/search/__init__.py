"""Which points are tried, and which are stopped early.

| module | contents |
|---|---|
| `sampling` | grid search, random search, Optuna samplers |
| `asker` | the next point of an adaptive search |
| `plan` | every point that is known at the start, checked |
| `standings` | the points at each epoch, best first, kept up to date from changes |
| `stoppers` | halving, ASHA, the median rule, patience |
| `decisions` | the input and the decisions of a stopper |
"""
