"""YAML → a typed, located, checked tree. Nothing here knows torch.

| file | idea |
|---|---|
| `tree` | immutable nodes with file and line |
| `read` | YAML text to tree and back |
| `layers` | `extend`, delete, append, inherit |
| `override` | `key=value`, `+key=value`, `~key` |
| `refer` | `${a.b}`, `${oc.env:NAME}`, `${secret:NAME}` |
| `roles`, `resolve`, `signature` | class paths, what may stand where, and with which parameters |
| `values`, `check`, `wording` | tree × annotations → typed values and every problem |
| `torch_facts` | what torch's signatures do not say |
| `kinds`, `identity` | identity, budget, neither; fingerprint and diff |
| `schema`, `defaults` | the sections of a run, and what they are when nobody says |
| `load`, `config`, `section` | the facade |
"""

from manyfit.config.component import Component
from manyfit.config.config import Config
from manyfit.config.kinds import Derived, Kind
from manyfit.config.load import load_config, patch

__all__ = ["Component", "Config", "Derived", "Kind", "load_config", "patch"]
