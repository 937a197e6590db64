"""The learner that trains several PyTorch modules of one structure in each step.

| module | contents |
|---|---|
| `learner` | training, validation and state of the runs of a group |
| `stack` | tensors of several modules in one memory, of which each module has a view |
| `optimizers` | optimizers of stacked parameters, with hyperparameters of their own for each run |
| `options` | the hyperparameters of several runs, step by step |
| `factors` | the factors of optimizer steps, computed ahead |
| `update` | from stacked gradients to new weights |
| `memory` | reuse of freed memory on the CPU |
| `stacked_loss` | losses whose numbers and class weights differ between runs |
| `dropout` | dropout whose masks do not depend on the group |
| `per_run` | functions that are called for each run separately on the CPU |
| `calls` | calls of a module and its loss for all runs at once, and for one of them |
| `group_key` | what runs must have in common to train in one group |
| `structure` | comparison of modules and losses by their contents |
| `self_check` | comparison of a group with each of its runs alone |
"""
