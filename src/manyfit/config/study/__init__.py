"""The config of a study: its base, its space, how it searches and where it is executed.

| room | what it holds |
|---|---|
| `study` | the study file: loading and checking |
| `sections`, `quantities` | its sections as typed records; durations and sizes |
| `space`, `space_reader` | the space of points, and how it is written |
"""
