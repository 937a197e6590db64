"""YAML files to a typed, checked config whose values know their file and line. Nothing here imports torch.

In the order of dependencies; a package imports only from those above it in the table:

| package or module | contents |
|---|---|
| `tree` | YAML as a tree of values with file and line: reading, extending, references, overrides |
| `typed` | checks of values against signatures: class paths, roles, types |
| `schema` | the sections of a run, their defaults, and consistency checks |
| `dialects` | other layouts of the config file |
| `config`, `load`, `identity`, `json_schema` | the checked config: loading, fingerprint, JSON Schema |
| `study` | the config of a study |
"""

from manyfit.config.config import Config
from manyfit.config.load import load_config, patch
from manyfit.config.typed.component import Component
from manyfit.config.typed.kinds import Derived, Kind

__all__ = ["Component", "Config", "Derived", "Kind", "load_config", "patch"]
