"""The driver of a study.

| room | what it holds |
|---|---|
| `driver` | the loop: decide, hand out units, take outcomes |
| `point_control`, `dispatch` | what the loop can do: to points, and with units |
| `reconcile` | at every start: the ledger, the study file and the run folders |
| `rehearsal` | one point of each structure is built before anything is trained |
| `inbox`, `commands` | what people ask of a study while it runs |
| `display` | what a person sees of it |
"""
