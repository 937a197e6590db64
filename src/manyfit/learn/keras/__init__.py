"""The learner for compiled Keras models, on the TensorFlow and the torch backend.

| module | contents |
|---|---|
| `kind` | which models it trains, and how a config builds the learner |
| `learner` | training, evaluation and state of one compiled model |
| `evaluation` | the function that evaluates a batch, and per-row losses |
| `names` | names of inputs and outputs |
| `variables` | all variables of a model, by their names in a checkpoint |
| `callbacks` | Keras callbacks and their state |
| `exports` | `.keras` files and SavedModels |
"""
