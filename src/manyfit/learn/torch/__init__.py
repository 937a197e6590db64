"""The learner for PyTorch modules.

| module | contents |
|---|---|
| `kind` | which models it trains, and how a config builds the learner |
| `build` | loss, optimizers, schedules and frozen parameters from a config |
| `learner` | training, evaluation and state of one module |
| `objective` | from a batch to outputs and a loss |
| `heads` | several outputs, each with its own target and loss |
| `outputs` | outputs as arrays |
| `fused` | several modules of one structure in one pass |
| `row_losses` | per-row losses |
| `loss_hints` | explanations for losses that fail |
| `row_metrics` | per-row metrics |
| `train_step` | the arguments and the return value of a model's own `train_step` |
| `update` | from gradients to new weights |
| `loss_sums` | running sums of losses |
| `description` | modules and devices in words |
| `randomness` | the random generators that training uses, and their state |
| `exports` | ONNX files and `torch.export` programs |
"""
