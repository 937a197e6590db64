"""Executors of units. An executor declares how many units it executes at once, and returns their outcomes.

| module | contents |
|---|---|
| `base` | the interface of all executors |
| `choose`, `guarded` | the executor that a study names, by name or class path; a wrapper for custom ones |
| `inline` | in this process, one after another; works with debuggers, but a crash ends everything |
| `processes`, `worker`, `server` | in long-lived processes on this machine, pinned to cores or GPUs |
| `messages` | messages between these and the driver, with states in shared memory |
| `ray_executor`, `ray_worker` | actors of a Ray cluster, each with such a process |
| `ray_cluster`, `ray_study` | the connection to a cluster; the part of it that a study uses |
| `ray_survey` | what the nodes of a cluster have, for dry runs and `doctor` |
| `shipment`, `node_files` | files that are sent to nodes, and what becomes of them there |
| `part_supply` | prepared rows, which are sent to a node when they are read there |
| `ray_etl` | ETL on the nodes of a cluster |
| `state_transfer` | states on their way between machines |
| `simulated` | synthetic curves on a simulated clock, to test samplers and stoppers |
"""
