"""The training loop and its parts.

| module | contents |
|---|---|
| `trainer` | the loop |
| `plan`, `clock` | boundaries that are known in advance, and time-based ones |
| `cohort` | the runs that one loop drives, each with its own log and checkpoints |
| `validation` | metrics of the validation split |
| `pictures` | images that training makes |
| `stopping` | early stopping and failing losses |
| `journal` | `run.log`, and one clear message when a run fails |
| `process_state` | process-wide state that the code of a run may change |
"""
