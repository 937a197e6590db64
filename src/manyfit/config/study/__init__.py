"""The config of a study: its base, its space, how it searches and where it is executed.

| room | what it holds |
|---|---|
| `study` | the study file as typed records |
| `space`, `space_reader` | the space of points, and how it is written |
"""
