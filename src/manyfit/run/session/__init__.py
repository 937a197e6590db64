"""Training of runs from their current position to their end, or to a position at which they pause.

| module | contents |
|---|---|
| `session` | open runs, resume them, train them together |
| `batch_rehearsal` | evaluate one batch before the first step, and check the result |
| `resume_check` | whether it is still the same run: config, data, code, backend |
| `slot` | one run of several, from opening it to closing it |
| `together` | train the runs of several slots, and go on with fewer after a failure |
| `fusing` | which runs train in one pass |
| `measuring` | how long steps take, alone and in one pass |
| `measuring_streams` | how long steps of several groups take side by side |
| `side_by_side` | groups that train side by side, each on a stream of a GPU |
| `finish` | export and evaluate the best checkpoint |
"""
