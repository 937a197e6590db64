"""YAML → a typed, located, checked tree. Nothing here knows torch.

From the ground up; a room imports only from those before it:

| room | what it holds |
|---|---|
| `tree` | YAML as a tree of located values: reading, extending, references, overrides |
| `typed` | values against signatures: class paths, roles, types |
| `schema` | the sections of a run, their defaults, and what must fit together |
| `dialects` | layouts of other systems |
| `config`, `load`, `identity`, `json_schema` | a checked config, its fingerprint, its JSON schema |
| `study` | the config of a study |
"""

from manyfit.config.config import Config
from manyfit.config.load import load_config, patch
from manyfit.config.typed.component import Component
from manyfit.config.typed.kinds import Derived, Kind

__all__ = ["Component", "Config", "Derived", "Kind", "load_config", "patch"]
