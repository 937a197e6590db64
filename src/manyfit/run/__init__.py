"""Training, resuming, evaluating and exporting a cohort of runs. Nothing here depends on studies.

In order of dependence: a subpackage imports only from those above it, the other modules from all of them.

| module | contents |
|---|---|
| `loop` | the training loop: plan, boundaries, cohort, log, validation |
| `callbacks` | observers of a run in training: progress, trackers |
| `build` | data, model and learner from a config |
| `evaluation` | row reports, exports, new data |
| `session` | opening, resuming, training and finishing a run |
| `travel` | runs that are trained in turn by workers that do not have their folders |
| `train`, `trial` | training a run to its end, a trial to a position |
| `folder_copy` | evaluating a trial on a worker that does not have its folder |
| `reuse`, `inferrer`, `result`, `closing_summary` | operations on a trained run |
| `find_lr`, `inspect_model` | the learning rate finder; layers, schedules and tensors |
| `profile`, `advice` | where the time of a run goes, and what would save most |
| `check`, `resume_proof`, `doctor` | checks: does a run work, does it resume exactly, is this machine ready |
"""
