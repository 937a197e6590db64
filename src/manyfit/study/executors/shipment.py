"""What a study sends to the nodes of a cluster: the code of its project, and data that they do not have."""

from __future__ import annotations

import fnmatch
import functools
import glob
import hashlib
import io
import os
import tarfile
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from manyfit.config import Config
from manyfit.core.errors import FolderError, UsageError
from manyfit.data.prepared import find_layout_folder, list_parts, read_layout
from manyfit.study.executors.node_files import DIGITS, ROWS, Delivered, measure, part_key
from manyfit.study.executors.part_supply import PartRequest

CHUNK: Final = 64 << 20
"""Bytes of an archive that are sent as one object."""
MOST_CODE: Final = 256 << 20
"""Bytes of source code, beyond which a source folder surely holds data."""
IGNORED: Final = ("__pycache__", "*.pyc", ".*", "node_modules", "*.egg-info")
SECTIONS: Final = ("data", "model", "trainer", "train", "evaluate")
"""Sections of a config whose values may be paths."""


@dataclass(frozen=True)
class Wanted:
    """A file or folder that a study reads: where it is, and how large."""

    path: Path
    """Its absolute path on the driver's machine."""
    name: str
    """Its path relative to the project; empty if it is not in it."""
    key: str
    """The key of the config that names it."""
    size: int
    changed: int
    layout: Path | None = None
    """The folder of prepared data in it, whose rows are only sent to the nodes that read them."""

    @property
    def mark(self) -> tuple[str, int, int]:
        """What a node compares with its own file at the same place."""
        return str(self.path), self.size, self.changed


@dataclass(frozen=True)
class Archive:
    """An archive of files, as the driver made it."""

    digest: str
    parts: Sequence[Any]
    """What `put` returned for each part: never is all of a large archive in memory."""
    size: int


def find_named_files(config: Config, more: Mapping[str, Any] | None = None) -> list[Wanted]:
    """Return the files and folders that the values of a config name, without those of the source code.

    `more` are further values, such as those of a search space, by key.
    """
    project, found = config.project.resolve(), dict[Path, Wanted]()
    sources = [source.resolve() for source in config.sources]
    for key, text in [*_texts(config.explicit), *_texts(more or {})]:
        if key.partition(".")[0] not in SECTIONS or "://" in text or not text.strip():
            continue
        for path in _paths(project, text):
            is_above = project.is_relative_to(path)
            if is_above or any(path.is_relative_to(source) for source in sources if source != project):
                continue
            size, changed = measure(path)
            name = str(path.relative_to(project)) if path.is_relative_to(project) else ""
            found[path] = Wanted(path, name, key, size, changed, _find_layout(path))
    return [wanted for path, wanted in found.items() if not any(above in found for above in path.parents)]


def _find_layout(path: Path) -> Path | None:
    """Return the folder of prepared data at a path, or None."""
    if not path.is_dir():
        return None
    try:
        return find_layout_folder(path)
    except FolderError:
        return None


def find_urls(config: Config) -> list[tuple[str, str]]:
    """Return the URLs in a config that data is read from, with their keys."""
    found = [(key, text) for key, text in _texts(config.explicit) if key.partition(".")[0] in SECTIONS]
    return [(key, text) for key, text in found if "://" in text]


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, each in value.items():
            yield from _texts(each, f"{key}.{name}" if key else str(name))
    elif isinstance(value, list | tuple):
        for number, each in enumerate(value):
            yield from _texts(each, f"{key}[{number}]")


def _paths(project: Path, text: str) -> list[Path]:
    """Return the existing files that a value means: one, or those of a pattern."""
    try:
        place = project / Path(text).expanduser()
        if place.exists():
            return [place.resolve()]
        if glob.has_magic(text) and os.sep in text:
            return [Path(found).resolve() for found in sorted(glob.iglob(str(place)))]  # noqa: PTH207
    except (OSError, ValueError, RuntimeError):
        pass
    return []


def pack_code(config: Config, base: Path, without: Collection[Path], put: Callable[[bytes], Any]) -> Archive:
    """Return the source code of a project, with the base config of the study.

    `without` are files and folders that are sent as data; `put` takes the parts of the archive.
    """
    project = config.project.resolve()
    files = {name_base(config, base): base}
    for source in config.sources:
        root = source.resolve()
        if not root.is_dir():
            continue
        if not root.is_relative_to(project):
            raise UsageError(
                f"the source folder {root} is not in the project {project}, so it cannot be sent to the "
                "nodes of a cluster; move it there, or install the code on every node"
            )
        whole = [(name, path) for name, path in _walk(root, project)]
        if root == project:  # it also holds the runs and the data
            whole = [(name, path) for name, path in whole if path.suffix == ".py"]
        files |= {
            name: path
            for name, path in whole
            if not any(path == each or each in path.parents for each in without)
        }
    check_size(files, config.sources)
    return pack_files(files, put)


def list_sources(folder: Path) -> dict[str, Path]:
    """Return the files of a folder of source code by their names in it; only Python files of the working
    directory and of folders above it, which hold other things, too."""
    root = folder.resolve()
    is_mixed = Path.cwd().resolve().is_relative_to(root)
    files = {
        name: path for name, path in _walk(root, root, not is_mixed) if path.suffix == ".py" or not is_mixed
    }
    check_size(files, [folder])
    return files


def check_size(files: Mapping[str, Path], sources: Sequence[Path]) -> None:
    """Raise an error if source code is so large that it must include data."""
    size = sum(path.stat().st_size for path in files.values())
    if size > MOST_CODE:
        raise UsageError(
            f"the source folders have {size >> 20} MiB, which would be sent to every node; move data and "
            f"results out of {', '.join(map(str, sources))}"
        )


def name_base(config: Config, base: Path) -> str:
    """Return where the base config of a study is, relative to the project."""
    project, file = config.project.resolve(), base.resolve()
    if file.is_relative_to(project):
        return str(file.relative_to(project))
    return str(Path("studies", *file.parts[-3:]))


def _walk(folder: Path, project: Path, is_source: bool = False) -> Iterator[tuple[str, Path]]:
    seen: set[tuple[int, int]] = set()
    for place, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in sorted(folders) if not _is_ignored(name, Path(place))]
        found = Path(place).stat()
        if (found.st_dev, found.st_ino) in seen:  # a link to a folder above it
            folders.clear()
            continue
        seen.add((found.st_dev, found.st_ino))
        if Path(place) == project and not is_source:
            folders[:] = [name for name in folders if name not in ("runs", "studies")]
        for name in sorted(names):
            if not _is_ignored(name, Path(place)):
                path = Path(place) / name
                yield str(path.relative_to(project)), path


def _is_ignored(name: str, place: Path) -> bool:
    if any(fnmatch.fnmatch(name, pattern) for pattern in IGNORED):
        return True
    return (place / name / "pyvenv.cfg").is_file()  # a virtual environment


def pack_data(wanted: Wanted, put: Callable[[bytes], Any]) -> Archive:
    """Return a file or folder as an archive."""
    if wanted.path.is_file():
        return pack_files({wanted.path.name: wanted.path}, put)
    files = {str(each.relative_to(wanted.path)): each for each in wanted.path.rglob("*") if each.is_file()}
    if wanted.layout is not None:
        parts = {wanted.layout / part for part in list_parts(wanted.layout)}
        parts |= {part.with_suffix(".json") for part in parts}  # only ETL reads them
        files = {name: path for name, path in files.items() if path not in parts}
    return pack_files({f"{wanted.path.name}/{name}": path for name, path in sorted(files.items())}, put)


def pack_files(files: Mapping[str, Path], put: Callable[[bytes], Any]) -> Archive:
    """Return files as an archive, whose digest depends on names and contents alone."""
    parts = _Parts(put)
    with tarfile.open(fileobj=parts, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for name, path in sorted(files.items()):
            info = tarfile.TarInfo(name)
            info.size = path.stat().st_size
            info.mode = 0o755 if os.access(path, os.X_OK) else 0o644
            with path.open("rb") as file:
                archive.addfile(info, file)
    parts.finish()
    return Archive(parts.digest.hexdigest()[:DIGITS], parts.found, parts.size)


class _Parts(io.RawIOBase):
    """A file whose contents are passed on in parts."""

    def __init__(self, put: Callable[[bytes], Any]) -> None:
        self.found: list[Any] = []
        self.digest = hashlib.sha256()
        self.size = 0
        self._put = put
        self._open = bytearray()

    def write(self, data: Any) -> int:
        self._open += data
        self.digest.update(data)
        self.size += len(data)
        while len(self._open) >= CHUNK:
            self.found.append(self._put(bytes(self._open[:CHUNK])))
            del self._open[:CHUNK]
        return len(data)

    def finish(self) -> None:
        """Pass the last part on."""
        if self._open:
            self.found.append(self._put(bytes(self._open)))
            self._open.clear()


def list_shards(layout: Path) -> list[set[str]]:
    """Return the keys of the files of each shard of the training rows."""
    shards = read_layout(layout)["splits"].get("train", {}).get("shards", [])
    found = [{part_key(part) for part in shard if part["rows"]} for shard in shards]
    return [keys for keys in found if keys]


@dataclass
class Shipment:
    """The files of one study, as its executor sends them."""

    config: Config | None = None
    base: Path | None = None
    space: Mapping[str, Any] = field(default_factory=dict)
    """The values that trials may have, by key."""

    def __post_init__(self) -> None:
        self.wanted = find_named_files(self.config, self.space) if self.config is not None else []
        self.urls = find_urls(self.config) if self.config is not None else []
        layouts = [each.layout for each in self.wanted if each.layout is not None]
        self._shards = list_shards(layouts[0]) if len(layouts) == 1 else []
        self._sent: dict[str, Delivered] = {}
        """What is in the object store, by its name."""

    @property
    def marks(self) -> list[tuple[str, int, int]]:
        """The files that nodes may have themselves."""
        return [each.mark for each in self.wanted]

    def find_missing(self, sees: Collection[str]) -> str:
        """Return which file a node lacks that cannot be sent; empty if there is none."""
        for each in self.wanted:
            if str(each.path) not in sees and not each.name:
                return (
                    f"{each.key}: {each.path} is not there, and only files of the project are sent to nodes; "
                    "move it into the project, put it where every node sees it, or use a URL"
                )
        return ""

    def deliver(self, sees: Collection[str], put: Callable[[bytes], Any]) -> list[Delivered]:
        """Return what a node needs that sees some files itself; the rest is put into the store once."""
        if self.config is None or self.base is None:
            return []
        config, base = self.config, self.base
        found = [self._send("", lambda: pack_code(config, base, self.paths, put))]
        for each in self.wanted:
            if str(each.path) not in sees:
                found.append(self._send(each.name, functools.partial(pack_data, each, put), each))
            elif each.name:
                found.append(Delivered(each.name, "", link=str(each.path)))
        return found

    def supply(self, request: PartRequest, put: Callable[[bytes], Any]) -> tuple[Delivered | None, str]:
        """Return prepared rows that a worker needs, or None and the reason why they cannot be sent."""
        sent = self._sent[request.name]
        layout = next(each.layout for each in self.wanted if each.name == request.name)
        if layout is None or request.part not in sent.parts:
            return None, "it is not part of the prepared data"
        try:
            made = pack_files({ROWS: layout / request.part}, put)
        except Exception as error:  # a missing file, a full object store: the worker says so
            return None, f"the driver cannot send it: {error}"
        return Delivered(request.part, sent.parts[request.part], made.parts), ""

    def find_shards(self, made: Collection[str]) -> tuple[int, ...]:
        """Return the shards of the training rows that a node has, given the keys of the files that it made.

        A shard of which it has more than half of the files is its own: no other node has as much.
        """
        return tuple(
            number for number, keys in enumerate(self._shards) if 2 * len(keys & set(made)) > len(keys)
        )

    @property
    def paths(self) -> list[Path]:
        """The files and folders that are sent as data, or read in place."""
        return [each.path for each in self.wanted]

    def _send(self, name: str, pack: Callable[[], Archive], wanted: Wanted | None = None) -> Delivered:
        if name not in self._sent:
            made = pack()
            sent = Delivered(name, made.digest, made.parts)
            if wanted is not None and wanted.layout is not None:
                keys = {part: part_key(found) for part, found in list_parts(wanted.layout).items()}
                sent = replace(sent, layout=str(wanted.layout.relative_to(wanted.path)), parts=keys)
            self._sent[name] = sent
        return self._sent[name]
