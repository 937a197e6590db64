"""A cohort of runs: trained, resumed, evaluated, exported. Nothing here knows studies.

From the ground up; a room imports only from those before it, and the verbs from all of them:

| room | what it holds |
|---|---|
| `loop` | the training loop: plan, boundaries, cohort, log, validation |
| `callbacks` | what sees a run while it is trained: progress, trackers |
| `build` | config → data, model, learner |
| `evaluation` | rows, reports, exports, new data |
| `session` | a run that is opened, resumed, trained further and finished |
| `train`, `trial` | the verbs that train: a run to its end, a trial to a position |
| `reuse`, `result`, `closing_summary` | what can be done with a run that was trained |
| `check`, `resume_proof`, `doctor` | whether a run will work, resume exactly, and on this machine |
"""
