"""A run from where it stands to its end, or to a position at which it pauses.

| room | what it holds |
|---|---|
| `session` | open runs, resume them, train them further together |
| `batch_rehearsal` | evaluate one batch before the first step, and check what it shows |
| `resume_check` | whether it is still the same run: config, data, code, backend |
| `finish` | export and evaluate the best checkpoint |
"""
