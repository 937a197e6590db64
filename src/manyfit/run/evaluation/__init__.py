"""Evaluation of trained models: row reports, predictions on new data, and exports.

| module | contents |
|---|---|
| `row_report` | a report with one line per row of a split: target, prediction, loss, metrics |
| `summary_statistics`, `first_rows` | summary statistics of a report; its first rows, to be drawn |
| `new_data` | rows from a file, for predictions |
| `predictions` | predictions batch by batch, to files that are continued |
| `export` | exports of a model for other programs |
"""
