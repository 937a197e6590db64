"""The schema of the config of a run, its defaults, and consistency checks.

| module | contents |
|---|---|
| `run` | the sections of a run as typed records |
| `defaults` | defaults of omitted values |
| `attributes` | annotated attributes of components as their parameters |
| `needed` | keys that are required, unless the user's functions train |
| `consistency` | values that contradict each other |
| `json_types` | annotations as JSON Schema |
| `credentials` | secrets, which are never written to a file |
"""
