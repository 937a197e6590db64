"""The durable record of a study.

| room | what it holds |
|---|---|
| `ledger` | points, trials, units and decisions in SQLite |
| `reader` | a ledger that somebody else may be writing |
| `database` | its tables, its formats, and how the file is opened |
| `integrity` | whether a ledger is what manyfit wrote, and agrees with its run folders |
| `best` | the best point, and `best/` |
| `start_weights` | weights that a cloned point begins with |
"""
