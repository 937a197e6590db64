"""Studies: many trials of one base config over a search space, recorded in a durable, extensible ledger.

From the lowest level up. A package imports only from those listed before it; the modules below the packages
import from all of them:

| module | contents |
|---|---|
| `work` | points, trials and units, and how a unit is trained |
| `executors` | where units are executed |
| `ledger` | the durable record |
| `search` | which points are tried, and which are stopped early |
| `drive` | the driver |
| `sweep`, `dry_run`, `submit`, `job_array` | the commands: train a study, estimate it, submit it to Slurm |
| `status`, `result`, `storage_export`, `mirrors` | the results of a study: to read, to export, in trackers |
"""
