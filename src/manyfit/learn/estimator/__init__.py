"""The learner for estimators with `fit` and `predict`, such as those of scikit-learn.

| module | contents |
|---|---|
| `kind` | which models it trains, and how a config builds the learner |
| `learner` | fitting, evaluation and state of one estimator |
"""
