"""Artifacts: configs and models that may come from elsewhere, and what may be built from them.

A run folder that this user trained on this machine carries a seal; so do its checkpoints and exports. What
carries none is data: it may name the classes in `allowed.py`, and the code of the project that the user
stands in. Anything else needs to be trusted by name.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from manyfit.config.allowed import ALLOWED
from manyfit.config.project import project_root
from manyfit.config.read import read_file
from manyfit.config.tree import Map, plain
from manyfit.core.errors import ConfigError, FolderError
from manyfit.core.files import read_bytes
from manyfit.core.seal import Sealer

SOURCES: Final = (Path("src"), Path("models") / "registry")
"""Where the code of a project lies, if no config of the user's says otherwise."""
RESOLVED: Final = "config.resolved.yaml"
SEAL: Final = "seal: "
HINT: Final = "if you trust it: --trust (in Python: trust=True)"


@dataclass(frozen=True, slots=True)
class Artifact:
    """How a config that was not made here is read."""

    place: Path
    sources: tuple[Path, ...]
    """The code of the project that the user stands in."""

    @staticmethod
    def at(place: Path) -> Artifact:
        """Read `place` as data, for a user who stands where this process does."""
        root = project_root(Path.cwd())
        inside = place.resolve()
        found = [root / source for source in SOURCES if (root / source).is_dir()]
        return Artifact(place, tuple(s for s in found if not s.resolve().is_relative_to(inside)))

    def source_of(self, path: str) -> Path | None:
        """The folder of the user's code in which the module of a class path lies."""
        top = path.partition(".")[0]
        return next((s for s in self.sources if (s / f"{top}.py").is_file() or (s / top).is_dir()), None)

    def refuses(self, path: str) -> str:
        """Why a class path may not even be imported; empty if it may."""
        if path in ALLOWED or self.source_of(path) is not None:
            return ""
        return (
            f"{self.place} was not made here, and {path} is neither a class that may be built from data nor "
            f"code of the project you are in; loading it would import and run it"
        )

    def disowns(self, path: str, target: Any) -> str:
        """Why what a class path has led to may not be called; empty if it may."""
        source = self.source_of(path)
        if source is None:
            return ""
        module = inspect.getmodule(target)
        file = getattr(module, "__file__", None)
        is_code = inspect.isclass(target) or inspect.isfunction(target)
        if is_code and file and Path(file).resolve().is_relative_to(source.resolve()):
            return ""
        return f"{self.place} was not made here, and {path} is not defined in {source.name}/"


def sealed(text: str, project: Path) -> str:
    """The text of a resolved config with the seal of whoever writes it, if there is one."""
    made = Sealer(project).seal(text)
    return f"{text}{SEAL}'{made}'\n" if made else text


def sealed_model(model: Mapping[str, Any], project: Path) -> dict[str, Any]:
    """The description of a model with the seal of whoever writes it, if there is one."""
    made = Sealer(project).seal(_canonical(model))
    return {**model, "seal": made} if made else dict(model)


def is_own_model(model: Mapping[str, Any], project: Path) -> bool:
    """Whether the description of a model was written here, for a project at this place."""
    bare = {key: value for key, value in model.items() if key != "seal"}
    return Sealer(project).holds(model.get("seal"), _canonical(bare))


def is_own_run(file: Path) -> bool:
    """Whether a resolved config was written here, for the project that it belongs to."""
    try:
        text = read_bytes(file).decode("utf-8", "surrogateescape")
        tree = read_file(file)
    except (OSError, ConfigError, FolderError):
        return False
    body, _, last = text.rpartition(SEAL)
    if not isinstance(tree, Map):
        return False
    said = plain(tree).get("config", {})
    root = project_root(file)
    if isinstance(said, dict) and isinstance(said.get("project_path"), str) and said["project_path"]:
        root = root / said["project_path"]
    return Sealer(root).holds(last.strip().strip("'"), body)


def artifact_at(file: Path) -> Artifact | None:
    """How to read a config file: as data if it lies in a run folder that was trained, but not here."""
    resolved = file if file.name == RESOLVED else file.parent / RESOLVED
    if not resolved.exists() or is_own_run(resolved):
        return None
    return Artifact.at(file.parent)


def _canonical(model: Mapping[str, Any]) -> str:
    return json.dumps(model, sort_keys=True, default=str)
