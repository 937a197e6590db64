"""The project's root: the folder that holds `runs/`, `studies/` or `variants/`."""

from __future__ import annotations

import contextlib
import glob
import os
from pathlib import Path
from typing import Final

FOLDERS: Final = ("runs", "studies", "variants")


def is_folder(path: Path) -> bool:
    """Whether there is such a folder; a name that no file can have is no error."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def below(folder: Path, pattern: str) -> str:
    """A pattern that counts from a folder, whose own name means nothing but itself.

    >>> below(Path("/a[1]"), "train-*")
    '/a[[]1]/train-*'
    """
    return pattern if Path(pattern).is_absolute() else str(Path(glob.escape(str(folder))) / pattern)


def logical(place: Path) -> Path:
    """An absolute path as a person has walked it: links are not followed."""
    if place.is_absolute():
        return Path(os.path.normpath(place))
    here, walked = Path.cwd(), os.environ.get("PWD", "")
    with contextlib.suppress(OSError):  # it is not there any more
        here = Path(walked) if walked and Path(walked).samefile(here) else here
    return Path(os.path.normpath(here / place))


def project_root(place: Path) -> Path:
    """Find the root of the project that a config file or run folder belongs to.

    It is the parent of the nearest folder named `runs`, `studies` or `variants` that `place` lies in;
    else the nearest folder around `place` that holds one of them; else the folder of `place` itself.
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
