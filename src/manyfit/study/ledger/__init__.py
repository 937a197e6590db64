"""The durable record of a study.

| module | contents |
|---|---|
| `ledger` | points, trials, units and decisions in SQLite, as the driver writes them |
| `reader` | reading a ledger, also while the driver writes it |
| `database` | the tables, the formats, and opening the file |
| `integrity` | whether manyfit wrote a ledger, and whether it agrees with its run folders |
| `best` | the best point, and `best/` |
| `start_weights` | weights that a cloned point starts from |
"""
