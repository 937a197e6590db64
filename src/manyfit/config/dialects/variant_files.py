"""The files of variants, found by name: in given folders, in the project, or among the shipped ones."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path as FilePath
from typing import Final

from manyfit.config.tree.project import project_root

log = logging.getLogger("manyfit")

PACKAGE: Final = FilePath(__file__).parents[2] / "feeders"
SHIPPED: Final = PACKAGE / "resources"
"""The variants, feeders and records shipped with manyfit."""


def find_variant(
    name: str, folders: Sequence[FilePath] = (), here: FilePath | None = None
) -> FilePath | None:
    """Return the file of a variant: from the given folders, the project, or the shipped variants."""
    if not name.isprintable() or "/" in name or "\\" in name or name in ("", ".", ".."):
        return None
    found = [
        file
        for folder in variant_folders(folders, here)
        for ending in ("", ".yaml", ".yml")
        if (file := folder / f"{name}{ending}").suffix in (".yaml", ".yml") and file.is_file()
    ]
    if not found:
        return None
    chosen, others = found[0], [file for file in found[1:] if not is_shipped_variant(file)]
    others = [file for file in others if file.resolve() != chosen.resolve()]
    if others:
        log.warning("variant %s: using %s; ignored: %s", name, chosen, ", ".join(map(str, others)))
    else:
        log.debug("variant %s: using %s", name, chosen)
    return chosen


def variant_folders(folders: Sequence[FilePath] = (), here: FilePath | None = None) -> list[FilePath]:
    """Return the folders that are searched for variants, in order."""
    root = project_root(here or FilePath.cwd())
    return [*folders, root / "variants", root / "config" / "variants", SHIPPED / "variants"]


def variant_names(folders: Sequence[FilePath] = ()) -> list[str]:
    """Return the names of all variants that can be found from the working directory."""
    found = [file for folder in variant_folders(folders) for file in sorted(folder.glob("*.y*ml"))]
    return list(dict.fromkeys(file.stem for file in found))


def is_shipped_variant(file: FilePath) -> bool:
    """Return whether a config is shipped with manyfit."""
    return file.resolve().is_relative_to(SHIPPED.resolve())


def find_project(file: FilePath) -> FilePath | None:
    """Return the project of a variant: for a shipped one, the current project; None for other configs."""
    if is_shipped_variant(file):
        return project_root(FilePath.cwd())
    root = project_root(file)
    return root.parent if root.name == "config" and file.parent == root / "variants" else None
