"""A cohort of runs: building, the trainer loop, callbacks, evaluation."""
