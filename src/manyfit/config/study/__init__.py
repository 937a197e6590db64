"""The config of a study: base config, search space, search and execution.

| module | contents |
|---|---|
| `study` | loading and checking a study file |
| `sections`, `quantities` | the sections as typed records; durations and sizes |
| `space`, `space_reader` | the search space, and reading it from the file |
| `study_schema`, `keys` | its JSON Schema; the keys that a config may have |
"""
