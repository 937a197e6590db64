"""A worker of ETL: it prepares parts of a table, and writes each as one file."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import pickle
import random
import shutil
import signal
import sys
import traceback
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from manyfit.core.errors import ComponentFailed, UsageError
from manyfit.core.lazy import import_optional
from manyfit.core.processes import die_with_parent
from manyfit.core.seeds import derive
from manyfit.core.tracebacks import user_frame
from manyfit.data.etl.spec import TableRow
from manyfit.data.row_files import RowForm, RowStack, flatten_alike, flatten_row, hash_rows, serialize_rows

_worker: dict[str, Any] = {}
"""The spec of this process."""


@dataclass(frozen=True)
class EtlPart:
    """Some rows of a shard, which become one file."""

    folder: str
    name: str
    mode: str
    object_dir: str
    ids: Sequence[str]
    rows: Sequence[dict[str, Any]] = ()
    """Filled in when the part is prepared."""
    downloads: Sequence[str] = ()
    stops: bool = True
    """Whether the first row that fails ends everything."""
    seed: int = 0
    """Random numbers that `row_prep` draws depend on this, and on the place of the row in its part."""


@dataclass(frozen=True)
class Done:
    """A part that was prepared."""

    name: str
    rows: int
    bytes: int
    digest: str
    """Of the rows: their contents, IDs and form. It does not depend on how they are written."""
    ids: str
    """The sum of the hashes of all IDs, also of the failed ones."""
    form: dict[str, Any] | None
    failed: dict[str, str]
    hashes: str
    """Of the contents of each row, as base64 of numbers of 8 bytes."""
    worker: int = 0


class RowFailed(Exception):
    """A row that could not be prepared."""


class WorkerFailed(Exception):
    """A process that could not be initialized."""


def begin_worker(spec: bytes, misc_path: str, parent: int) -> None:
    """Prepare this process: called once. An error is raised by its first part, so that it can be shown."""
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        _worker["spec"] = prepare_worker(spec, misc_path)
    except Exception as error:
        _worker["error"] = str(error)


def prepare_worker(spec: bytes, misc_path: str) -> Any:
    """Return the spec of this process, after calling the methods that prepare a worker."""
    made = pickle.loads(spec)
    call_user(made.initialize_worker)
    call_user(made.read_misc, misc_path)
    return made


def call_user(method: Any, *arguments: Any) -> Any:
    """Call a method of a spec; an error in it is named, with its place."""
    try:
        return method(*arguments)
    except (Exception, SystemExit) as error:
        text = f"{method.__qualname__} failed: {type(error).__name__}: {error}\n  at {user_frame(error)}"
        raise ComponentFailed(text) from error


def prepare_part(part: EtlPart) -> Done:
    """Prepare a part in this process."""
    if "error" in _worker:
        raise WorkerFailed(_worker["error"])
    return prepare_rows(_worker["spec"], part)


def prepare_rows(spec: Any, part: EtlPart) -> Done:
    """Prepare the rows of a part and write them. The file is complete once its description is there."""
    failed: dict[str, str] = {}
    stack, has_torch = RowStack(len(part.ids)), "torch" in sys.modules
    seed_generators(derive(part.seed, "part", part.name))  # seeding for each row would be slow
    for id_, row in zip(part.ids, part.rows, strict=True):
        try:
            form, arrays = prepare_row(spec, part, row, stack.form)
            if part.stops and form is not stack.form and stack.form is not None and form != stack.form:
                raise UsageError(
                    f"row_prep returned {describe(form)}, but {describe(stack.form)} for other rows"
                )
        except (Exception, SystemExit) as error:
            if part.stops:
                raise RowFailed(describe_failure(part, id_, error)) from None
            failed[id_] = f"{type(error).__name__}: {error}"
            continue
        stack.add(id_, form, arrays)
    if not has_torch and "torch" in sys.modules:
        return prepare_rows(spec, part)  # row_prep has imported torch, whose generator was not seeded
    ids, usual, columns, odd = stack.finish()
    for id_, form in odd.items():
        failed[id_] = f"row_prep returned {describe(form)}, but other shapes or types for most rows"
    path = Path(part.folder) / part.name
    size, digest, hashes = 0, "", b""
    if ids and usual is not None:
        temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        hashes = hash_rows(columns).tobytes()
        contents = serialize_rows(ids, usual, columns)
        size, digest = len(contents), digest_rows(ids, usual, hashes)
        temporary.write_bytes(contents)
        temporary.replace(path)
    described = None if usual is None else usual.to_json()
    done = Done(
        part.name, len(ids), size, digest, sum_ids([*ids, *failed]), described, failed,
        base64.b64encode(hashes).decode(), os.getpid(),
    )  # fmt: skip
    note = path.with_suffix(".json")
    temporary = note.with_name(f".{note.name}.{os.getpid()}.tmp")
    temporary.write_text(json.dumps(asdict(done)))
    temporary.replace(note)
    return done


def digest_rows(ids: Sequence[str], form: RowForm, hashes: bytes) -> str:
    """Return a hash of rows, from the hashes of their contents: hashing every byte again would be slow."""
    described = json.dumps([list(ids), form.to_json()], sort_keys=True)
    return hashlib.sha256(hashes + described.encode()).hexdigest()[:32]


def describe_failure(part: EtlPart, id_: str, error: BaseException) -> str:
    """Return which row failed, why, and where in the user's code."""
    where = user_frame(error) or traceback.format_exc(limit=-1).strip()
    return f"the row {id_!r} of {part.mode} failed: {type(error).__name__}: {error}\n  at {where}"


def prepare_row(
    spec: Any, part: EtlPart, row: dict[str, Any], known: RowForm | None
) -> tuple[RowForm, dict[str, Any]]:
    """Return the form and the arrays of one row; `known` is the form of earlier rows."""
    folder, fetched = part.object_dir, None
    if "://" in folder and part.downloads:
        fetched = fetch_objects(part, row)
        folder = f"{fetched}/"
    try:
        made = spec.row_prep(TableRow(row), part.mode, folder)
    finally:
        if fetched is not None:
            shutil.rmtree(fetched, ignore_errors=True)
    if not isinstance(made, tuple) or len(made) != 2:
        raise UsageError(f"row_prep must return (x, y) or (x, None), not {made!r:.60}")
    alike = flatten_alike(*made, known) if known is not None else None
    return (known, alike) if known is not None and alike is not None else flatten_row(*made)


def seed_generators(seed: int) -> None:
    """Seed the generators that `row_prep` may draw from; PyTorch's only if it is loaded."""
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.default_generator.manual_seed(seed)


def fetch_objects(part: EtlPart, row: dict[str, Any]) -> Path:
    """Copy the object files of a row from a remote folder, below the same relative names."""
    fsspec = import_optional("fsspec", "etl")
    place = Path(part.folder) / f".objects-{os.getpid()}"
    place.mkdir(exist_ok=True)
    for name in part.downloads:
        target = place / str(row[name])
        if not target.resolve().is_relative_to(place.resolve()):
            raise UsageError(f"the file {row[name]!r} is outside of {part.object_dir}")
        target.parent.mkdir(parents=True, exist_ok=True)
        with fsspec.open(f"{part.object_dir}{row[name]}", "rb") as file:
            target.write_bytes(file.read())
    return place


def sum_ids(ids: Sequence[str]) -> str:
    """Return the sum of the hashes of IDs, which does not depend on their order."""
    total = sum(int.from_bytes(hashlib.sha256(id_.encode()).digest()[:16], "little") for id_ in ids)
    return f"{total % (1 << 128):032x}"


def describe(form: RowForm) -> str:
    """Describe the columns of rows."""
    return ", ".join(f"{name} {column.shape} {column.dtype}" for name, column in form.columns.items())
