"""The work of a study: points, trials and units, and how a unit is trained.

| module | contents |
|---|---|
| `units` | trials, units, outcomes and failures, as executors see them |
| `unit_watch` | whether a unit, or one trial of it, was asked to stop |
| `training` | train the trials of a unit, each in its run folder |
| `points` | points of the search space, and the config of a trial |
| `records` | the state of points and trials |
| `schedule` | which trials can be trained now |
| `groups` | which of them are trained in one pass |
| `hops` | which shard a trial visits next, and on which worker |
| `policy`, `failures` | the consequence of each kind of failure, and the kind of an exception |
| `folder` | the study folder |
"""
