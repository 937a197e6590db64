"""The training loop and what it is made of.

| room | what it holds |
|---|---|
| `trainer` | the loop |
| `plan`, `clock` | boundaries that are known in advance, and what the clock decides |
| `cohort` | the runs that one loop drives, each with its log and its checkpoints |
| `validation` | means over the validation split |
| `stopping` | why a run ends early |
| `journal` | `run.log`, and one clear message when a run fails |
| `process_state` | what the code of a run may change in its process |
"""
