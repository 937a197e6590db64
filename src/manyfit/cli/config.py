"""`manyfit config`: show, check, diff, schema."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from manyfit.cli.common import (
    OverrideVerb,
    Verb,
    current_overrides,
    json_option,
    print_json,
    run_argument,
    table,
    to_yaml,
    trust_option,
)
from manyfit.cli.output import say
from manyfit.core.errors import ConfigError, Problem, UsageError

if TYPE_CHECKING:
    from manyfit.config import Config


@click.group()
def command() -> None:
    """Show, check and compare configs."""


@command.command("show", cls=OverrideVerb)
@run_argument
@click.option("--origin", is_flag=True, help="Also show where each value is defined, and its kind.")
@trust_option
@json_option
def show_command(run: Path, origin: bool, trust: bool, json_: bool) -> None:
    """Show every value of a config: defaults included, after extend, overrides and references."""
    from manyfit.config import load_config

    config = load_config(run, current_overrides(), trust=trust)
    note_what_was_trained(run, config)
    if json_:
        print_json(
            {
                "fingerprint": config.fingerprint,
                "values": {
                    path: {"value": value, "origin": where, "kind": kind}
                    for path, value, where, kind in config.rows()
                },
            }
        )
    elif origin:
        table(
            [(path, to_yaml(value), str(kind), where) for path, value, where, kind in config.rows()],
            ("key", "value", "kind", "origin"),
        )
    else:
        table([(path, to_yaml(value)) for path, value, _, _ in config.rows()])


@command.command("check", cls=OverrideVerb)
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@trust_option
@json_option
def check_command(runs: tuple[Path, ...], trust: bool, json_: bool) -> None:
    """Check configs without reading data or building anything. Exit with 2 if one has an error."""
    from manyfit.config import load_config

    problems: list[Problem] = []
    checked: dict[str, str] = {}
    for run in runs:
        try:
            checked[str(run)] = load_config(run, current_overrides(), trust=trust).fingerprint
        except ConfigError as error:
            problems += error.problems
    if json_:
        print_json(
            {
                "ok": checked,
                "problems": [
                    {
                        "file": p.origin.file,
                        "line": p.origin.line,
                        "key": p.path,
                        "message": p.message,
                        "expected": p.expected,
                        "received": p.received,
                        "suggestion": p.suggestion,
                    }
                    for p in problems
                ],
            }
        )
        if problems:
            click.get_current_context().exit(2)
    elif problems:
        raise ConfigError(problems)
    else:
        for name, fingerprint in checked.items():
            say(f"{name}: ok, {fingerprint[:12]}")


@command.command("diff", cls=Verb)
@click.argument("before", type=click.Path(path_type=Path))
@click.argument("after", type=click.Path(path_type=Path))
@trust_option
@json_option
def diff_command(before: Path, after: Path, trust: bool, json_: bool) -> None:
    """Show the differences between two configs, and whether each makes a different or a longer run."""
    from manyfit.config import load_config

    left, right = load_config(before, trust=trust), load_config(after, trust=trust)
    note_what_was_trained(before, left)
    note_what_was_trained(after, right)
    found = left.diff(right)
    if json_:
        print_json(
            [
                {"key": d.path, "kind": d.kind, "before": _plain(d.before), "after": _plain(d.after)}
                for d in found
            ]
        )
    elif found:
        table([(d.path, to_yaml(d.before), "→", to_yaml(d.after), str(d.kind)) for d in found])
    else:
        say("no difference")


@command.command("schema", cls=Verb)
@click.argument("run", required=False, type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write to a file.")
@click.option("--study", is_flag=True, help="The schema of study.yaml; RUN is its base.")
@trust_option
def schema_command(run: Path | None, output: Path | None, study: bool, trust: bool) -> None:
    """Print a JSON Schema for configs, or for study.yaml, for completion in editors.

    With RUN, the schema includes the parameters of the classes that it names, or the keys of a search space.
    In an editor that uses the YAML language server, put
    `# yaml-language-server: $schema=config.schema.json` on the first line.
    """
    import json

    from manyfit.config import load_config
    from manyfit.config.json_schema import json_schema
    from manyfit.config.study.study_schema import study_schema

    found = load_config(run, trust=trust) if run else None
    text = json.dumps((study_schema if study else json_schema)(found), indent=2)
    if output is None:
        say(text)
    elif not output.parent.is_dir():
        raise UsageError(f"the folder {output.parent} does not exist")
    else:
        from manyfit.store import durable

        durable.write_file(output, text + "\n")


def note_what_was_trained(run: Path, config: Config) -> None:
    """Print to stderr the values of the trained run that differ from its current config.yaml."""
    from manyfit.config.identity import NOT_SET
    from manyfit.config.identity import diff_snapshots as differences
    from manyfit.store.folder import RunFolder

    before = RunFolder(run).snapshot() if run.is_dir() else None
    for found in differences(config.snapshot, before) if before is not None else ():
        if found.after is NOT_SET and config.origin(found.path) is None:
            continue  # a default that an older version did not have
        say(f"note: {run} was trained with {found.path} = {to_yaml(found.after)}", err=True)


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float | str | list | dict) else None
