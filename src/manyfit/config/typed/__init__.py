"""Values against signatures: class paths, roles, types, and what may be built from data.

| room | what it holds |
|---|---|
| `checker` | a tree against the signature of whatever it configures |
| `component`, `section` | `{class: path, **params}`, checked; and sections of the user's own |
| `values`, `scalars`, `cadence`, `arguments` | values of one type |
| `findings` | what a check collects: problems, and facts about values |
| `signatures`, `torch_facts` | the parameters of a callable |
| `class_paths`, `roles`, `extensions` | class path → object, and whether it can play its part |
| `moved_classes` | class paths of earlier versions |
| `artifacts`, `allowed_classes` | what may be built from files that were not made here |
| `kinds`, `config_struct`, `wording` | kinds of values, configs as objects, words in messages |
"""
