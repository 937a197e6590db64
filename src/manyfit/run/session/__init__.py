"""A run from where it stands to its end, or to a position at which it pauses.

| room | what it holds |
|---|---|
| `session` | open a run, resume it, train it further |
| `resume_check` | whether it is still the same run: config, data, code, backend |
| `finish` | export and evaluate the best checkpoint |
"""
