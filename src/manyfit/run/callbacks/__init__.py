"""Observers of a run in training; they do not change it.

| module | contents |
|---|---|
| `progress` | a progress bar on a terminal, lines elsewhere |
| `mirrors` | callbacks that mirror committed metrics |
| `tracking` | what is sent to TensorBoard and MLflow |
"""
