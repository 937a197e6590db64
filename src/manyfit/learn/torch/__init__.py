"""Learner of PyTorch modules: objective, update, running sums, and what a config builds them from."""
