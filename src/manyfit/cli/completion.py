"""`manyfit completion`."""

from __future__ import annotations

import click

from manyfit.cli.common import Verb
from manyfit.cli.output import say


@click.command(cls=Verb)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    eval "$(manyfit completion bash)"        # in ~/.bashrc
    eval "$(manyfit completion zsh)"         # in ~/.zshrc
    manyfit completion fish > ~/.config/fish/completions/manyfit.fish
    """
    from click.shell_completion import get_completion_class

    from manyfit.cli import cli

    completer = get_completion_class(shell)
    assert completer is not None
    say(completer(cli, {}, "manyfit", "_MANYFIT_COMPLETE").source())
