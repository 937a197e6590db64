"""The driver of a study.

| module | contents |
|---|---|
| `driver` | the loop: decide, assign units, record outcomes |
| `assigning` | which units are assigned next |
| `point_control` | operations on points: add, continue, stop |
| `dispatch` | the units that the executor is working on |
| `keepers` | the run folders of trials whose workers do not have them |
| `hopping` | trials that hop: where they are, and which visit comes next |
| `reconcile` | at every start: bring the ledger in line with the study file and the run folders |
| `rehearsal` | build one point of each structure before anything is trained |
| `planner` | how a study is executed, if the config leaves it open |
| `inbox`, `commands` | commands from users to a running study |
| `display` | progress on the terminal |
"""
