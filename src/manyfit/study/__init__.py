"""Studies: many trials made from one base config and a space, as a ledger that can be killed and extended.

From the ground up; a room imports only from those before it, and the verbs from all of them:

| room | what it holds |
|---|---|
| `work` | points, trials and units, and how a unit is trained |
| `executors` | where units are executed |
| `ledger` | the durable record |
| `search` | which points are tried, and which are stopped early |
| `drive` | the driver |
| `sweep`, `dry_run`, `submit`, `job_array` | the verbs: here, not at all, and on a Slurm cluster |
| `status`, `result`, `storage_export`, `mirrors` | what a study has found: to read, to export, in trackers |
"""
