"""Layouts of other systems, each a pure function from tree to tree.

| room | what it holds |
|---|---|
| `dialect` | what a dialect is |
| `table` | all of them, and what everybody else asks |
| `five_components` | loader, augmentor, preprocessor, model builder, evaluator |
| `variants` | `model.type` and feeders, found by name |
| `variant_files`, `variant_feeders` | where variants are found; their feeders and the shipped records |
"""
