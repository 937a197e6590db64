"""ETL: rows of tables and their object files, prepared in parallel and written in shards.

| module | contents |
|---|---|
| `spec` | `ETLSpec`: how a row is prepared |
| `tables` | the tables that are read |
| `worker` | a process that prepares parts of a table |
| `run` | planning, preparing and accounting for every row |
| `progress`, `command` | progress on a terminal; ETL from the command line |
"""
