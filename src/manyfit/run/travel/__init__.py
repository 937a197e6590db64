"""Runs that travel: a keeper owns the folder of a run, and workers train it in turn.

| module | contents |
|---|---|
| `luggage` | what a run takes along to a worker, and what the worker returns |
| `visit` | training on a worker that does not have the run folder |
| `keeper` | the owner of the folder, the log and the checkpoints of a run |
"""
