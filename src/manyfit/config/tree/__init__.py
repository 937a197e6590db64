"""YAML as a tree of values with file and line: reading, extending, references, overrides.

| module | contents |
|---|---|
| `nodes` | the tree: mappings, sequences and leaves, each with file and line |
| `reader` | parsing YAML text into a tree, and writing it |
| `layers` | files that extend other files |
| `overrides` | `key=value` from the command line |
| `references`, `expressions` | `${a.b}`; the constraints of a search space |
| `project` | finding the project root of a file |
"""
