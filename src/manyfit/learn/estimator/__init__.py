"""Learner of estimators with `fit` and `predict`, such as those of scikit-learn."""
