"""The project root: the folder that contains `runs/`, `studies/` or `variants/`."""

from __future__ import annotations

import contextlib
import glob
import os
from pathlib import Path
from typing import Final

FOLDERS: Final = ("runs", "studies", "variants")


def is_folder(path: Path) -> bool:
    """Return whether a folder exists; an impossible name is not an error."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def below(folder: Path, pattern: str) -> str:
    """Return a glob pattern relative to a folder; special characters in the name of the folder are escaped.

    >>> below(Path("/a[1]"), "train-*")
    '/a[[]1]/train-*'
    """
    return pattern if Path(pattern).is_absolute() else str(Path(glob.escape(str(folder))) / pattern)


def logical(place: Path) -> Path:
    """Return an absolute path in which symbolic links are not resolved, as the shell shows it."""
    if place.is_absolute():
        return Path(os.path.normpath(place))
    here, walked = Path.cwd(), os.environ.get("PWD", "")
    with contextlib.suppress(OSError):  # it was deleted
        here = Path(walked) if walked and Path(walked).samefile(here) else here
    return Path(os.path.normpath(here / place))


def project_root(place: Path) -> Path:
    """Find the root of the project that a config file or run folder belongs to.

    It is the parent of the nearest enclosing folder named `runs`, `studies` or `variants`; else the nearest
    enclosing folder that contains one of these; else the folder of `place` itself.
    """
    for here in (logical(place), place.resolve()):  # a run folder may be a link to elsewhere
        for folder in here.parents:
            if folder.name in FOLDERS:
                return folder.parent
    start = here if here.is_dir() else here.parent
    for folder in (start, *start.parents):
        if any((folder / name).is_dir() for name in FOLDERS):
            return folder
    return start
