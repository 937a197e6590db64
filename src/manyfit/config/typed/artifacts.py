"""Artifacts: configs and models that may come from elsewhere, and what may be built from them.

A run folder that this user trained on this machine has a seal; so do its checkpoints and exports. Artifacts
without one are treated as data: they may name the classes in `allowed_classes.py` and the code of the
current project. Anything else must be trusted explicitly.
"""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from manyfit.config.tree.nodes import Map, plain
from manyfit.config.tree.project import project_root
from manyfit.config.tree.reader import read_file
from manyfit.config.typed.allowed_classes import ALLOWED
from manyfit.core.errors import ConfigError, FolderError
from manyfit.core.files import read_bytes
from manyfit.core.seal import sealer

SOURCES: Final = (Path("src"), Path("models") / "registry")
"""Default source folders of a project."""
RESOLVED: Final = "config.resolved.yaml"
MARKS: Final = (RESOLVED, "model.json", "manifest.json")
"""Files that identify a folder as an artifact."""
PARTS: Final = ("checkpoints", "exported-top")
"""Folders of a run that contain artifacts."""
SEAL: Final = "seal: "
HINT: Final = "if you trust it: --trust (in Python: trust=True)"


@dataclass(frozen=True, slots=True)
class Artifact:
    """The restrictions under which a config from elsewhere is read."""

    place: Path
    sources: tuple[Path, ...]
    """The source folders of the current project."""

    @staticmethod
    def at(place: Path) -> Artifact:
        """Return the restrictions for `place`; the current project is that of the working directory."""
        root = project_root(Path.cwd())
        found = [root / source for source in SOURCES if (root / source).is_dir()]
        if any((root / name).exists() for name in MARKS):
            found = []  # the working directory is an artifact, not a project
        inside = place.resolve()
        if (inside / "model.json").exists() or (inside / "manifest.json").exists():
            inside = inside.parent if inside.parent.name not in PARTS else inside.parent.parent
        return Artifact(place, tuple(s for s in found if not s.resolve().is_relative_to(inside)))

    def source_of(self, path: str) -> Path | None:
        """Return the source folder that contains the module of a class path; None if there is none."""
        top, _, rest = path.partition(".")
        second = rest.partition(".")[0]
        for source in self.sources:
            own = [source / f"{top}.py", source / top / "__init__.py", source / top / f"{second}.py"]
            if any(file.is_file() for file in own) or (second and (source / top / second).is_dir()):
                return source
        return None

    def steps(self, path: str) -> list[str]:
        """Return the prefixes of a class path beyond its module: each must resolve to the user's code."""
        source, parts = self.source_of(path), path.split(".")
        if source is None:
            return [path]
        length = 1
        while length < len(parts) - 1:
            folder = source.joinpath(*parts[: length + 1])
            if not (folder.is_dir() or folder.with_suffix(".py").is_file()):
                break
            length += 1
        return [".".join(parts[:end]) for end in range(length + 1, len(parts) + 1)]

    def refuses(self, path: str) -> str:
        """Return why a class path may not be imported; empty if it may."""
        if path in ALLOWED or self.source_of(path) is not None:
            return ""
        return (
            f"{self.place} was not made here, and {path} is neither an allowed class nor "
            f"code of the current project; loading it would import and run it"
        )

    def disowns(self, path: str, target: Any) -> str:
        """Return why an imported object may not be called; empty if it may."""
        source = self.source_of(path)
        if source is None:
            return ""
        module = inspect.getmodule(target)
        file = getattr(module, "__file__", None)
        is_code = inspect.isclass(target) or inspect.isfunction(target)
        if is_code and file and Path(file).resolve().is_relative_to(source.resolve()):
            return ""
        return f"{self.place} was not made here, and {path} is not defined in {source.name}/"


def _bind_to_folder(text: str, folder: Path) -> str:
    """Return the text of a resolved config with its folder: a seal is valid for one folder on one machine."""
    return f"{os.path.realpath(folder)}\0{text}"


def seal_config(text: str, project: Path, folder: Path) -> str:
    """Return the text of a resolved config with the seal of this user, if there is one."""
    made = sealer(project).seal(_bind_to_folder(text, folder))
    return f"{text}{SEAL}'{made}'\n" if made else text


def seal_model(model: Mapping[str, Any], project: Path) -> dict[str, Any]:
    """Return the description of a model with the seal of this user, if there is one."""
    made = sealer(project).seal(_canonical(model))
    return {**model, "seal": made} if made else dict(model)


def is_own_model(model: Mapping[str, Any], project: Path) -> bool:
    """Return whether the description of a model was written on this machine for this project."""
    bare = {key: value for key, value in model.items() if key != "seal"}
    return sealer(project).holds(model.get("seal"), _canonical(bare))


def reseal_config(file: Path, folder: Path) -> str:
    """Return the text of the user's own resolved config, sealed for another folder."""
    body = read_bytes(file).decode("utf-8", "surrogateescape").rpartition(SEAL)[0]
    return seal_config(body, _project(file), folder)


def _project(file: Path) -> Path:
    """Return the project of a resolved config: the one that it names, else the enclosing one."""
    tree = read_file(file)
    said = plain(tree).get("config", {}) if isinstance(tree, Map) else {}
    named = said.get("project_path") if isinstance(said, dict) else None
    root = project_root(file)
    return root / named if isinstance(named, str) and named else root


def is_own_run(file: Path) -> bool:
    """Return whether a resolved config was written on this machine, for its present folder and project."""
    try:
        text, root = read_bytes(file).decode("utf-8", "surrogateescape"), _project(file)
    except (OSError, ConfigError, FolderError):
        return False
    body, _, last = text.rpartition(SEAL)
    return sealer(root).holds(last.strip().strip("'"), _bind_to_folder(body, file.parent))


def artifact_at(file: Path) -> Artifact | None:
    """Return the restrictions for a config file; None unless its run folder was trained elsewhere."""
    resolved = file if file.name == RESOLVED else file.parent / RESOLVED
    trained = (resolved, *(file.parent / name for name in ("checkpoints", "exported", "metrics.jsonl")))
    if not any(os.path.lexists(trace) for trace in trained) or is_own_run(resolved):
        return None
    return Artifact.at(file.parent)


def _canonical(model: Mapping[str, Any]) -> str:
    return json.dumps(model, sort_keys=True, default=str)
