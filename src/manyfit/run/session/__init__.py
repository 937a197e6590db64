"""Training of runs from their current position to their end, or to a position at which they pause.

| module | contents |
|---|---|
| `session` | open runs, resume them, train them together |
| `batch_rehearsal` | evaluate one batch before the first step, and check the result |
| `resume_check` | whether it is still the same run: config, data, code, backend |
| `fusing` | which runs train in one pass |
| `finish` | export and evaluate the best checkpoint |
"""
