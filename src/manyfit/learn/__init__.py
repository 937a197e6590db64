"""The `Learner` protocol and the kinds of learners.

| module | contents |
|---|---|
| `learner` | the `Learner` protocol, and defaults for your own learners |
| `metrics_by_run` | metrics of the runs of a cohort, and their transfer to the CPU |
| `group` | several learners of one run each as one learner of a cohort |
| `kind` | kinds of learners, and their registration |
| `models` | models as a builder returns them |
| `torch`, `keras`, `estimator` | the built-in kinds |
| `metrics`, `split_metrics`, `streaming_metrics` | metrics of a row, metrics of a whole split |
| `score_histogram` | areas under curves from histograms of scores |
| `rate_sweep`, `schedules` | a sweep over learning rates; schedules that torch does not have |
| `step_log` | values that user code logs inside a step |
| `row_outputs` | which outputs of a model have one entry per row |
| `packing` | nested states as flat tensors and plain values |
| `exporting` | descriptions of inputs, and the comparison of an export with the original |
"""
