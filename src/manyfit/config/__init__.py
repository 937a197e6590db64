"""YAML → a typed, located, checked tree. Nothing here knows torch.

| file | idea |
|---|---|
| `tree` | immutable nodes with file and line |
| `read` | YAML text to tree and back |
| `layers` | `extend`, delete, append, inherit |
| `override` | `key=value`, `+key=value`, `~key` |
| `refer` | `${a.b}`, `${oc.env:NAME}`, `${secret:NAME}` |
| `roles`, `resolve`, `signature` | class paths, what may stand where, and with which parameters |
| `check` | tree × annotations → typed values and every problem |
| `kinds`, `identity` | identity, budget, neither; fingerprint and diff |
| `schema`, `defaults` | the sections of a run, and what they are when nobody says |
| `config` | the facade |
"""

from manyfit.config.component import Component
from manyfit.config.config import Config, load_config
from manyfit.config.kinds import Derived, Kind

__all__ = ["Component", "Config", "Derived", "Kind", "load_config"]
