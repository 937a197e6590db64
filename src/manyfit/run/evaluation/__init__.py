"""What a trained model says, row by row, and the forms in which it can be exported.

| room | what it holds |
|---|---|
| `row_report` | every row of a split: target, prediction, loss, metrics |
| `summary_statistics` | a report in a few numbers |
| `new_data` | rows from a file, for predictions |
| `export` | a model in forms that others can load |
"""
