"""What sees a run while it is trained, and changes nothing.

| room | what it holds |
|---|---|
| `progress` | a bar on a terminal, lines elsewhere |
| `mirrors` | trackers that follow what was committed |
| `tracking` | what is sent to TensorBoard and MLflow |
"""
