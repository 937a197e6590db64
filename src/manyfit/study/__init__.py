"""Studies: many trials made from one base config and a space, as a ledger that can be killed and extended.

- `units`: what executors execute, and what they answer
- `points`, `sampling`: which points are tried; `stoppers`: which are given up
- `ledger`: the durable record; `schedule`, `policy`: pure functions of it
- `executors`: inline, processes, simulated; `training`: what they do with a unit
- `driver`: the loop; `inbox`: what people ask of it while it runs
- `sweep`: all of it in one call
"""
