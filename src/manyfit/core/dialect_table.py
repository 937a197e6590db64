"""The dialects of config files, and the options that each adds to the command line.

A dialect is one file in `config/dialects/` and one entry here. Dialects are named by class path, because
`--help` must not import them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Option:
    """An option of the commands that accept overrides; its value is a folder."""

    flags: tuple[str, ...]
    help: str
    key: str = ""
    """The key of the config that it sets. Empty: an additional folder to search for configs by name."""


@dataclass(frozen=True, slots=True)
class DialectEntry:
    """A dialect: the class path of its `Dialect`, and its options."""

    path: str
    options: tuple[Option, ...] = ()


ENTRIES: Final = (
    DialectEntry(
        "manyfit.config.dialects.five_components.FIVE_COMPONENTS",
        (
            Option(
                ("--data-dir",),
                "Folder of the data of five components (data_dir), relative to the working directory.",
                "data_dir",
            ),
        ),
    ),
    DialectEntry(
        "manyfit.config.dialects.variants.VARIANTS",
        (
            Option(
                ("-d", "--variants-dir"),
                "Folder to search for variants by name, before those of the project.",
            ),
        ),
    ),
)
