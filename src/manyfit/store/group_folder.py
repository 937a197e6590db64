"""Group folders: the checkpoints of runs that train in one pass, committed together by one rename.

    groups/<name>/group.json               the runs of the group
    groups/<name>/commit-000000043/        what they have saved up to step 43
        manifests.jsonl                    a manifest for each checkpoint of each run
        states-000000043-0.safetensors     tensors, with a row for each run
        rows.jsonl                         rows of the runs' logs that may not be on disk yet

While a run belongs to a group, its folder has a reference, `checkpoints/group.json`. To readers, the run's
checkpoints in the group look like those in its own folder.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from manyfit.core.errors import FolderError
from manyfit.store import durable
from manyfit.store.files import check_fields, read_json
from manyfit.store.lock import is_owned
from manyfit.store.manifest import FIELDS, Manifest, NewerFormat

REFERENCE: Final = "group.json"
ASIDE: Final = f"damaged-{REFERENCE}"
"""The reference of a run to a group that was damaged: its files are not removed."""
MANIFESTS: Final = "manifests.jsonl"
ROWS: Final = "rows.jsonl"
COMMIT: Final = "commit-"
FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class GroupReference:
    """Where the checkpoints of a run are, besides those in its own folder."""

    group: Path
    run: int
    """The number of the run in the group."""


@dataclass(frozen=True, slots=True)
class Grouped:
    """A checkpoint of one run in the folder of its group."""

    commit: Path
    row: int
    file: str
    """The name of the file with its tensors."""
    manifest: Manifest

    @property
    def tensors(self) -> Path:
        """The file with its tensors."""
        return self.commit / self.file


def name_commit(step: int) -> str:
    """Return the name of the folder that is committed at a step."""
    return f"{COMMIT}{step:09d}"


def choose_group(groups: Path | None, first: str) -> Path | None:
    """Return a new folder in `groups` for the checkpoints of a group, named after its first run."""
    return groups / f"{first}-{uuid.uuid4().hex[:8]}" if groups is not None else None


def create_group(group: Path, folders: Sequence[Path]) -> None:
    """Create the folder of a group; `folders` are the checkpoint folders of its runs.

    It exists before any run refers to it, so a reference without its group means that files are missing.
    """
    runs = [os.path.relpath(folder, group) for folder in folders]
    durable.write_file(group / REFERENCE, json.dumps({"format": FORMAT, "runs": runs}) + "\n")


def refer(folder: Path, group: Path, run: int) -> None:
    """Record in a checkpoint folder that the run has checkpoints in the folder of a group."""
    place = PurePosixPath(os.path.relpath(group, folder)).as_posix()
    text = json.dumps({"format": FORMAT, "group": place, "run": run}) + "\n"
    durable.write_file(folder / REFERENCE, text)


def read_reference(folder: Path, name: str = REFERENCE) -> GroupReference | None:
    """Return the reference in a checkpoint folder, or None; raise if the group does not exist."""
    file = folder / name
    found = read_json(file, {"format": int, "group": str, "run": int}) if file.exists() else {}
    if not found:
        return None
    if found["format"] != FORMAT:
        raise NewerFormat(f"{file} has format {found['format']}; use a newer version of manyfit")
    place = PurePosixPath(found["group"])
    if place.is_absolute():
        raise FolderError(f"{file} is damaged: {place} is not a relative path")
    group = Path(os.path.normpath(folder / place))
    if not (group / REFERENCE).is_file():
        raise FolderError(
            f"the last checkpoints of {folder.parent} are in the group folder {group}, which does not exist: "
            "the run was copied or moved without it"
        )
    return GroupReference(group, found["run"])


def read_grouped(folder: Path) -> dict[int, Grouped]:
    """Return by step the checkpoints that a run has in its group; raise if one of them is damaged."""
    found, wrong = find_grouped(folder)
    if wrong:
        raise FolderError(wrong)
    return found


def find_grouped(folder: Path) -> tuple[dict[int, Grouped], str]:
    """Return by step the checkpoints that a run has in its group, and what is damaged."""
    try:
        reference = read_reference(folder)
    except NewerFormat:
        raise
    except FolderError as error:
        return {}, str(error)
    found, wrong = dict[int, Grouped](), list[str]()
    for commit in list_commits(reference.group) if reference is not None else ():
        assert reference is not None
        try:
            for line in _read_lines(commit / MANIFESTS):
                each = _parse(commit, line, reference.run)
                if each is not None:
                    found[each.manifest.note.step] = each
        except NewerFormat:
            raise
        except FolderError as error:
            if commit.is_dir():  # else it was removed meanwhile
                wrong.append(str(error))
    return found, "; ".join(wrong)


def list_commits(group: Path) -> list[Path]:
    """Return what was committed for a group, the oldest first."""
    try:
        names = os.listdir(group)  # noqa: PTH208
    except FileNotFoundError:
        return []
    return [group / name for name in sorted(names) if name.startswith(COMMIT)]


def _parse(commit: Path, line: bytes, run: int) -> Grouped | None:
    """Return the checkpoint of a line; None if it is that of another run."""
    if not line.startswith(b'{"run": %d,' % run):
        return None
    file = commit / MANIFESTS
    try:
        tree = check_fields(json.loads(line), {**FIELDS, "run": int, "row": int, "file": str}, file)
        row, name = tree["row"], tree["file"]
        if Path(name).name != name:
            raise FolderError(f"{file} is damaged: it names files outside of its folder")
        return Grouped(commit, row, name, Manifest.parse(tree, file))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise FolderError(f"{file} is damaged: {error}") from error


def _read_lines(path: Path) -> Sequence[bytes]:
    try:
        status = path.stat()
        return _read_cached(path, status.st_ino, status.st_mtime_ns, status.st_size)
    except OSError as error:
        raise FolderError(f"{path} cannot be read: {error.strerror}") from error


@functools.lru_cache(maxsize=8)
def _read_cached(path: Path, number: int, changed: int, size: int) -> Sequence[bytes]:
    lines = path.read_bytes().splitlines(keepends=True)
    if not lines or lines.pop() != _sum_up(lines):
        raise FolderError(f"{path} is damaged: it does not match its checksum")
    return lines


def join_lines(lines: Sequence[str]) -> bytes:
    """Return the contents of a file with these lines and their checksum."""
    data = [line.encode() for line in lines]
    return b"".join([*data, _sum_up(data)])


def _sum_up(lines: Sequence[bytes]) -> bytes:
    digest = hashlib.sha256(b"".join(lines)).hexdigest()
    return (json.dumps({"lines": len(lines), "sha256": digest}) + "\n").encode()


def dump_manifest(run: int, row: int, file: str, manifest: Manifest) -> str:
    """Return the line of a checkpoint in `manifests.jsonl`."""
    signed = manifest.sign(run=run, row=row, file=file)
    return json.dumps({"run": run, **signed}) + "\n"


def dump_rows(run: int, begin: int, text: str) -> str:
    """Return a line of `rows.jsonl`: the rows of a log from position `begin` on."""
    return json.dumps({"run": run, "begin": begin, "text": text}) + "\n"


def read_carried_rows(commit: Path, run: int) -> tuple[int, bytes]:
    """Return where the rows of a run begin in its log, and the rows."""
    file = commit / ROWS
    for line in _read_lines(file):
        if line.startswith(b'{"run": %d,' % run):
            try:
                found = json.loads(line)
                return int(found["begin"]), str(found["text"]).encode()
            except (ValueError, KeyError, TypeError) as error:
                raise FolderError(f"{file} is damaged: {error}") from error
    return 0, b""


def list_runs(group: Path) -> Iterator[Path]:
    """Yield the checkpoint folders of the runs of a group."""
    found = read_json(group / REFERENCE, {"format": int, "runs": list})
    for place in found.get("runs", ()):
        yield Path(os.path.normpath(group / str(place)))


def discard_unused(group: Path) -> bool:
    """Remove the folder of a group to which no run refers; return whether it was removed."""
    for folder in list_runs(group):
        for name in (REFERENCE, ASIDE):
            try:
                reference = read_reference(folder, name)
            except FolderError:
                continue
            if reference is not None and reference.group == group:
                return False
    durable.discard(group)
    return True


def discard_leftovers(groups: Path) -> None:
    """Remove the folders of groups that no process and no run uses."""
    if not groups.is_dir():
        return
    for group in sorted(groups.iterdir()):
        if group.name.startswith("."):
            durable.discard(group)
        elif not is_owned(group):
            discard_unused(group)
    with contextlib.suppress(OSError):  # it is not empty
        groups.rmdir()


def restore_log(path: Path, commit: Path, run: int, length: int) -> None:
    """Write rows to the log of a run that were committed, but are not in the file: see `rows.jsonl`.

    Logs are not flushed to disk with every commit. If the machine has lost power, their ends may be missing.
    """
    begin, rows = read_carried_rows(commit, run)
    wanted = rows[: max(0, length - begin)]
    if begin + len(wanted) < length:
        raise FolderError(f"{commit / ROWS} is damaged: it does not have all rows up to its checkpoint")
    before = path.read_bytes() if path.exists() else b""
    if before[begin:length] == wanted:
        return
    if len(before) < begin:
        raise FolderError(f"{path} is shorter than its checkpoint requires: {len(before)} of {begin} bytes")
    durable.write_file(path, before[:begin] + wanted)
