"""The learner made of a user's functions: a step, an epoch or the whole loop.

| module | contents |
|---|---|
| `kind` | which objects are trained by their own functions, and how a config builds the learner |
| `functions` | the functions of an object, and how much of the training they replace |
| `learner` | the learner: calls the functions, and keeps the state that it finds on the object |
| `bench` | what functions may call: backward, step, log |
| `evaluation` | evaluation by functions: of a batch, or of a whole split |
| `epochs` | epochs and loops of the user's: what they read, and where they pause |
| `loaders` | the splits, as loaders to iterate over |
| `loop_thread` | a loop of the user's in a thread of its own, paused between epochs |
| `losses` | what functions return: a loss, losses by name, or nothing |
| `networks` | the modules of an object without a model, as one module |
| `modules` | modules with a `train_step` |
| `lightning`, `lightning_optimizers`, `lightning_parts` | Lightning modules |
| `whole` | objects whose `train()` is the whole training |
"""
