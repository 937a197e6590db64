"""Common parts of all commands: overrides, log levels, tables, completion of run names."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from glob import iglob
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from manyfit.cli import LOG_LEVELS
from manyfit.cli.log_level import set_log_level
from manyfit.cli.output import say
from manyfit.core.dialect_table import ENTRIES, Option
from manyfit.core.errors import ManyfitError, RunFailed
from manyfit.core.json_numbers import as_json_tree
from manyfit.core.redaction import redact_nested
from manyfit.core.text import printable_line

F = TypeVar("F", bound=Callable[..., Any])

_OVERRIDE = re.compile(r"[+~]|[A-Za-z_][\w.\[\]-]*=")


class Verb(click.Command):
    """A command that also accepts `--log-level` after its name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(
            click.Option(
                ["-l", "--log-level"],
                type=LOG_LEVELS,
                expose_value=False,
                is_eager=True,
                callback=_set,
                help="Log to stderr at this level and above.",
            )
        )

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Show warnings on stderr, including those about the arguments, unless another level was given."""
        if not logging.getLogger("manyfit").handlers:
            set_log_level("WARNING")
        return super().make_context(*args, **kwargs)


class OverrideVerb(Verb):
    """A command that accepts overrides anywhere among its arguments; they are applied in order."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params.append(
            click.Option(
                ["-p", "--param"],
                nargs=2,
                multiple=True,
                expose_value=False,
                metavar="KEY VALUE",
                help="Set a value. Also: KEY=VALUE; +KEY to add to a list or mapping; '~KEY' to delete.",
            )
        )
        self.params.append(
            click.Option(
                ["-P", "--param-str"],
                nargs=2,
                multiple=True,
                expose_value=False,
                metavar="KEY TEXT",
                help="Set a value to this text, verbatim.",
            )
        )
        self.params += [_folder_option(option) for entry in ENTRIES for option in entry.options]

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """Add overrides to the usage line."""
        return [*super().collect_usage_pieces(ctx), "[KEY=VALUE]..."]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Extract the overrides and let click parse the rest."""
        ctx.meta["overrides"], rest = split_overrides(args)
        return super().parse_args(ctx, rest)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete options, and the keys of the run or study that is named."""
        named = [ctx.params.get(name) for name in ("run", "study", "place")]
        place = next((each for each in named if each is not None), None)
        keys = complete_keys(Path(place), incomplete) if place is not None and incomplete[:1] != "-" else []
        return [*super().shell_complete(ctx, incomplete), *keys]


def complete_keys(place: Path, incomplete: str) -> list[CompletionItem]:
    """Return the keys of a config that begin as given, up to the next dot: `train.`, `train.epochs=`."""
    from manyfit.config.study.keys import list_keys_of

    depth = incomplete.count(".") + 1
    try:
        keys = list_keys_of(place)
    except ManyfitError:
        return []  # the command will say what is wrong
    found = [key.split(".") for key in keys if key.startswith(incomplete)]
    shown = {".".join(key[:depth]) + ("." if len(key) > depth else "=") for key in found}
    return [CompletionItem(text) for text in sorted(shown)]


def split_overrides(args: Sequence[str]) -> tuple[list[Any], list[str]]:
    """Separate overrides from other arguments."""
    found: list[Any] = []
    rest: list[str] = []
    queue = list(args)
    while queue:
        word = queue.pop(0)
        attached = re.match(r"--param=|-p(?=\w)", word)  # --param=KEY VALUE, -pKEY VALUE
        if attached:
            queue.insert(0, word[attached.end() :])
        if word in ("-P", "--param-str"):
            if len(queue) < 2:
                raise click.UsageError("-P requires a key and a text: -P model.name 0123")
            found.append(_text(queue.pop(0), queue.pop(0)))
        elif attached or word in ("-p", "-c", "--param", "--param-expr"):
            if len(queue) < 2:
                raise click.UsageError(
                    "-p requires a key and a value: -p train.epochs 10 (or, without -p, train.epochs=10)"
                )
            found.append(_pair(queue.pop(0), queue))
        elif _OVERRIDE.match(word):
            found.append(_from_here(word))
        else:
            rest.append(word)
    return found, rest


def _text(key: str, value: str) -> Any:
    """Parse the override of `-P KEY VALUE`: the value verbatim."""
    from manyfit.config.tree.overrides import parse_text_override

    return _from_here(parse_text_override(key, value))


def _pair(key: str, queue: list[str]) -> Any:
    """Parse the override of `-p KEY VALUE`; a pattern that the shell has expanded is a list of files."""
    from manyfit.config.tree.overrides import pair

    value = queue.pop(0)
    files = [value]
    while queue and _is_data(value) and _is_data(queue[0]):
        files.append(queue.pop(0))
    return _from_here(pair(key, value if len(files) == 1 else json.dumps(files)))


def _is_data(word: str) -> bool:
    """Return whether a word is a data file from an expanded pattern, and not the run to train."""
    if word.startswith("-") or word.endswith((".yaml", ".yml")):
        return False
    try:
        return Path(word).is_file()
    except (OSError, ValueError):
        return False


FILES: Final = ("file_patterns", "model_dir")
"""Keys whose values are paths: on the command line they are relative to the working directory."""


def _from_here(given: Any) -> Any:
    if isinstance(given, str) and not re.match(rf"\+?[\w.\[\]-]*({'|'.join(FILES)})=", given):
        return given
    from dataclasses import replace

    from manyfit.config.tree.nodes import Leaf, Seq
    from manyfit.config.tree.overrides import parse_override
    from manyfit.config.tree.project import below

    override = parse_override(given) if isinstance(given, str) else given
    key = str(override.path[-1])
    if key not in FILES:
        return given

    def located(node: Any) -> Any:
        if isinstance(node, Seq):
            return Seq(tuple(map(located, node.items)), node.origin)
        if not isinstance(node, Leaf) or not isinstance(node.value, str) or not node.value:
            return node
        is_here = key == "model_dir" or next(iglob(node.value), None) is not None  # noqa: PTH207
        is_local = "://" not in node.value and not node.value.startswith(("~", "$"))
        if not (is_here and is_local):
            return node
        here = str(Path.cwd() / node.value) if key == "model_dir" else below(Path.cwd(), node.value)
        return Leaf(here, node.origin)

    return replace(override, value=located(override.value))


def current_overrides() -> list[Any]:
    """Return the overrides of the current command."""
    return list(click.get_current_context().meta["overrides"])


def _folder_option(option: Option) -> click.Option:
    """Create the option of a dialect: it sets a key of the config, or adds a folder to search for configs."""

    def set_key(ctx: click.Context, param: click.Parameter, value: Path | None) -> None:
        if value is not None:
            from manyfit.config.tree.overrides import pair

            ctx.meta["overrides"].append(pair(option.key, str(value.resolve())))

    def add_folders(ctx: click.Context, param: click.Parameter, value: tuple[Path, ...]) -> None:
        for folder in value:
            if not folder.is_dir():
                raise click.UsageError(f"{option.flags[-1]}: the folder {folder} does not exist")
        ctx.meta["folders"] = (*ctx.meta.get("folders", ()), *value)

    is_search = not option.key
    return click.Option(
        list(option.flags),
        type=click.Path(path_type=Path, file_okay=not is_search),
        multiple=is_search,
        is_eager=is_search,
        expose_value=False,
        metavar="FOLDER",
        callback=add_folders if is_search else set_key,
        help=option.help,
    )


def _variant(ctx: click.Context, param: click.Parameter, value: Path) -> Path:
    """Return a run folder or file unchanged; look up any other name in the given folders of variants."""
    from manyfit.config.tree.project import is_folder

    folders = ctx.meta.get("folders", ())
    if not folders or is_folder(value) or value.is_file():
        return value
    from manyfit.config.dialects.table import find_config
    from manyfit.config.tree.overrides import pair
    from manyfit.config.tree.project import project_root

    found = find_config(str(value), folders)
    if found is None:
        return value
    if any(
        found.parent == folder for folder in folders
    ):  # it is trained in the project of the working directory
        ctx.meta["overrides"].append(pair("project_path", json.dumps(str(project_root(Path.cwd())))))
    return found


def _set(ctx: click.Context, param: click.Parameter, value: str | None) -> None:
    if value is not None:
        set_log_level(value)


def print_json(value: Any) -> None:
    """Print a result as JSON."""
    say(json.dumps(as_json_tree(redact_nested(value)), indent=2, default=str))


def table(rows: Iterable[Sequence[Any]], header: Sequence[str] = ()) -> None:
    """Print aligned columns."""
    cells = [[_cell(cell) for cell in row] for row in ([header, *rows] if header else rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))] if cells else []
    for row in cells:
        say("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _cell(value: object) -> str:
    """Return a cell as one line; only messages with indented continuation lines keep their line breaks."""
    text = str(value)
    return text if "\n  " in text else printable_line(text)


def to_yaml(value: object) -> str:
    """Return a value as YAML writes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return value if isinstance(value, str) else repr(value)


def complete_run(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of run folders."""
    from manyfit.config.dialects.table import config_names

    places = [*Path().glob("runs/*/config.yaml"), *Path().glob("runs/*/*/config.yaml")]
    if incomplete.startswith("studies/"):
        places += [*Path().glob("studies/*/best/config.yaml"), *Path().glob("studies/*/trials/*/config.yaml")]
    found = [str(config.parent) for config in places] + config_names()
    return sorted(name for name in found if name.startswith(incomplete))


def complete_place(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of run folders and study folders."""
    return [*complete_run(ctx, param, incomplete), *complete_study(ctx, param, incomplete)]


def json_option(function: F) -> F:
    """Add `--json`."""
    return click.option("--json", "json_", is_flag=True, help="Print JSON.")(function)


def run_argument(function: F) -> F:
    """Add the argument RUN: a run folder or a config file."""
    return click.argument(
        "run", type=click.Path(path_type=Path), shell_complete=complete_run, callback=_variant
    )(function)


def gpu_option(function: F) -> F:
    """Add `--gpu`."""
    return click.option(
        "-g",
        "--gpu",
        "gpus",
        multiple=True,
        metavar="N",
        expose_value=False,
        callback=_pin_gpus,
        help="Use only this GPU; repeatable for a study. `idle` selects an unused one.",
    )(function)


def _pin_gpus(ctx: click.Context, param: click.Parameter, value: tuple[str, ...]) -> None:
    if value:
        from manyfit.core.gpus import pin

        chosen = pin(value)
        if len(set(chosen)) > 1 and ctx.info_name == "train":
            say(f"a run uses one GPU, here {chosen[0]}; only studies use several", err=True)


def check_failed(rows: Mapping[str, int]) -> None:
    """Exit with 1 if a function has failed on some rows, after everything has been written."""
    failed = {split: count for split, count in rows.items() if count}
    if failed:
        text = ", ".join(f"{count} of the {split} split" for split, count in failed.items())
        raise RunFailed(f"a function has failed on rows, {text}: see the column `failed` of the reports")


def study_argument(function: F) -> F:
    """Add the argument STUDY: a study folder or file."""
    return click.argument(
        "study", type=click.Path(path_type=Path), shell_complete=complete_study, callback=_study_folder
    )(function)


def _study_folder(ctx: click.Context, param: click.Parameter, value: Path) -> Path:
    """Return `studies/x` for `studies/x/study.yaml`."""
    return value.parent if value.name == "study.yaml" and value.is_file() else value


def complete_study(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Complete the names of study folders."""
    found = [str(file.parent) for file in Path().glob("studies/*/study.yaml")]
    return sorted(name for name in found if name.startswith(incomplete))


def trust_option(function: F) -> F:
    """Add `--trust`."""
    return click.option(
        "--trust",
        is_flag=True,
        help="Run the code that RUN names, even though it was not trained on this machine.",
    )(function)


def allow_change_option(function: F) -> F:
    """Add `--allow-change`."""
    return click.option(
        "--allow-change",
        multiple=True,
        metavar="KEY",
        help="Continue despite this change: a key of the config, data, data.train, code, code.models …",
    )(function)
