"""Runs that travel: a keeper owns the folder of a run, and workers train it in turn.

| module | contents |
|---|---|
| `luggage` | what a run takes along to a worker, and what the worker returns |
| `visit` | training on a worker that does not have the run folder |
| `visitor` | a run on a visit, whose log and states stay in memory |
| `group_visit` | visits of several runs that train together |
| `keeper` | the owner of the folder, the log and the checkpoints of a run |
"""
