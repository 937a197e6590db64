"""Checks of values against signatures: class paths, roles, types, and what an artifact may build.

| module | contents |
|---|---|
| `checker` | checks of a tree against the signature of the component that it configures |
| `component`, `section` | the checked form of `{class: path, **params}`; read-only mappings |
| `values`, `scalars`, `cadence`, `arguments` | checks of values against types |
| `findings` | the results that a check collects: problems, kinds, classes, defaults |
| `signatures`, `torch_facts` | the parameters of a callable |
| `class_paths`, `roles`, `extensions` | importing class paths; which classes are allowed at which key |
| `moved_classes` | class paths of earlier versions |
| `artifacts`, `allowed_classes` | what may be built from files that were written elsewhere |
| `keyword_reads` | parameters that a function reads from its `**kwargs` |
| `logged_names` | names that a model passes to `manyfit.log` |
| `kinds`, `config_struct`, `wording` | kinds of values, configs as objects, types in messages |
"""
