"""Tables, statistics and figures of runs and studies; independent of how they are trained.

| module | contents |
|---|---|
| `compare` | two runs on the same rows |
| `leaderboard`, `comparisons`, `replicates` | the points of a study, compared over seeds |
| `effects` | every hyperparameter of a study against every metric |
| `image_grid` | inputs, targets and outputs of rows that are images |
| `row_figures` | confusion matrix, calibration and residuals of a row report |
| `records`, `conditions` | runs and studies, read-only; conditions on them |
| `charts`, `curves`, `rates` | line charts; curves of runs and studies; sweeps over rates |
"""
