"""YAML as a tree of located values: reading, extending, references, overrides.

| room | what it holds |
|---|---|
| `nodes` | the tree: mappings, sequences and leaves, each with file and line |
| `reader` | YAML text → tree, and back |
| `layers` | files that extend other files |
| `overrides` | `key=value` from the command line |
| `references`, `expressions` | `${a.b}`, and the small language inside |
| `project` | where the project of a file begins |
"""
