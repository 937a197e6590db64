"""ETL: rows of tables and their object files, prepared in parallel and written in shards.

| module | contents |
|---|---|
| `spec` | `ETLSpec`: how a row is prepared |
| `tables` | the tables that are read |
| `worker` | a process that prepares parts of a table |
| `plan` | which rows are used, and in which file each of them is |
| `run` | preparing them, in parallel |
| `accounting` | the layout, and the proof that no row is missing |
| `progress`, `command` | progress on a terminal; ETL from the command line |
"""
