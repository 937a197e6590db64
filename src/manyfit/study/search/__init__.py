"""Which points are tried, and which are stopped early.

| room | what it holds |
|---|---|
| `sampling` | grid, random points, samplers of Optuna |
| `asker` | asks a sampler for the next point |
| `plan` | every point that is known at the start, checked |
| `stoppers` | halving, ASHA, the median rule, patience |
| `decisions` | what a stopper sees, and what it can decide |
"""
