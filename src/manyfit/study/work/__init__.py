"""What there is to do: points, trials and units, and how a unit is trained.

| room | what it holds |
|---|---|
| `units` | trials, units, outcomes and failures, as executors know them |
| `unit_watch` | whether a unit, or one trial of it, shall end |
| `training` | the work: train the trials of a unit, each in its run folder |
| `points` | points of the space, and the config of a trial |
| `records` | what is known of points and trials |
| `schedule` | what can be trained now |
| `policy`, `failures` | exceptions as failures of a kind, and what follows from each kind |
| `folder` | the study folder |
"""
