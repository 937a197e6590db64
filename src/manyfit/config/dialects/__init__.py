"""Dialects: other layouts of the config file, each a pure function from tree to tree.

| module | contents |
|---|---|
| `dialect` | the definition of a dialect |
| `table` | all dialects, and the functions that other packages use |
| `five_components` | loader, augmentor, preprocessor, model builder, evaluator |
| `variants` | `model.type` with feeders; configs found by name |
| `variant_files`, `variant_feeders` | finding variants by name; their feeders and the shipped records |
"""
