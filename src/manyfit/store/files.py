"""JSON files of a run folder, checked when read: they may be damaged or edited."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from manyfit.core.errors import FolderError
from manyfit.core.files import read_bytes
from manyfit.core.redaction import redact_nested


def read_json(path: Path, fields: Mapping[str, type]) -> dict[str, Any]:
    """Read an object with known fields; empty if the file does not exist."""
    if not path.exists():
        return {}
    try:
        found = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError) as error:
        raise FolderError(f"{path} is damaged: {error}") from error
    return check_fields(found, fields, path)


_encode = json.JSONEncoder(allow_nan=False).encode


def readable(value: Any, depth: int = 1, indent: str = "") -> str:
    """Return readable JSON: one field per line, down to `depth` levels."""
    if not indent:
        value = redact_nested(value)
    if not depth or not value or not isinstance(value, dict | list):
        return _encode(value)
    inner = f"{indent} "
    if isinstance(value, list):
        items = [readable(item, depth - 1, inner) for item in value]
    else:
        items = [f"{_encode(str(key))}: {readable(item, depth - 1, inner)}" for key, item in value.items()]
    ends = "[]" if isinstance(value, list) else "{}"
    lines = f",\n{inner}".join(items)
    return f"{ends[0]}\n{inner}{lines}\n{indent}{ends[1]}"


def check_fields(found: Any, fields: Mapping[str, type], path: Path) -> dict[str, Any]:
    """Raise unless a value is an object with these fields; numbers are counts, so none may be negative."""
    if not isinstance(found, dict):
        raise FolderError(f"{path} is damaged: it does not hold a JSON object")
    for name, kind in fields.items():
        value = found.get(name)
        fits = isinstance(value, int | float if kind is float else kind) and not isinstance(value, bool)
        fits = fits and not (isinstance(value, int | float) and value < 0)
        if not fits:
            raise FolderError(
                f"{path} is damaged: {name!r} should be a {kind.__name__}, but is {value!r:.60}"
            )
    return found
