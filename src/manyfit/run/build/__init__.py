"""Objects built from a config.

| module | contents |
|---|---|
| `builder` | data, model, learner and plan of a config |
| `modes` | the threads and the precision with which a run computes |
| `shared_data` | data that the runs of one process share |
| `evaluator` | evaluation functions of one row |
| `user_code` | the user's modules that a run has imported |
| `sharding`, `folds` | the shards of the training rows; the fold of a run |
"""
