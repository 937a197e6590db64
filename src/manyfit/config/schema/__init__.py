"""What a config may say: the schema of a run, its defaults, and what must fit together.

| room | what it holds |
|---|---|
| `run` | the sections of a run as typed records |
| `defaults` | values that nobody has given |
| `attributes` | annotated attributes of components as their parameters |
| `consistency` | values that contradict each other |
| `json_types` | annotations as JSON Schema |
| `credentials` | secrets, which never reach a file |
"""
