"""Names that a user's model passes to `manyfit.log`, found in its source code.

They are only known for certain once the model was called. Before that, a config may refer to them, as
`train_<name>` and `val_<name>`.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from pathlib import Path
from typing import Any, Final

CALL: Final = re.compile(r"\blog\(\s*[\"']([\w./-]+)[\"']")


def find_logged_names(product: Any) -> list[str]:
    """Return the names in calls of `log("name", …)` in the modules that define a class and its bases."""
    if not inspect.isclass(product):
        return []
    modules = dict.fromkeys(base.__module__ for base in product.__mro__)
    skipped = ("builtins", "torch", "keras", "sklearn", "manyfit", "lightning", "abc", "typing")
    own = [name for name in modules if name.partition(".")[0] not in skipped]
    files = [getattr(sys.modules.get(name), "__file__", None) for name in own]
    return [name for file in files if file for name in _names_in(Path(file))]


def _names_in(file: Path) -> tuple[str, ...]:
    try:
        return _read_names(file, file.stat().st_mtime_ns)
    except OSError:
        return ()


@functools.lru_cache(maxsize=256)
def _read_names(file: Path, changed: int) -> tuple[str, ...]:
    source = file.read_text(encoding="utf-8", errors="replace")
    return tuple(dict.fromkeys(CALL.findall(source))) if "manyfit" in source else ()
