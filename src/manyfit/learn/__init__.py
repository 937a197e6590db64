"""The `Learner` protocol and its kinds."""
