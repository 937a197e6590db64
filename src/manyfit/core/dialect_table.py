"""The layouts of other systems that configs may have, and the options that each adds to the command line.

A dialect is one file in `config/dialects/` and one entry here. They are named by class path, because `--help`
must not import them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Option:
    """An option of the commands that take overrides; its value is a folder."""

    flags: tuple[str, ...]
    help: str
    key: str = ""
    """The key of the config that it sets. Empty: configs are looked for by name in this folder, too."""


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
                "Where the data of five components lies: the key data_dir, from here.",
                "data_dir",
            ),
        ),
    ),
    DialectEntry(
        "manyfit.config.dialects.variants.VARIANTS",
        (
            Option(
                ("-d", "--variants-dir"),
                "A folder in which variants are looked for by name, before those of the project.",
            ),
        ),
    ),
)
