"""`manyfit completion`."""

from __future__ import annotations

from typing import Final

import click

from manyfit.cli.common import Verb
from manyfit.cli.output import say

NO_SPACE: Final = {
    "bash": ("    return 0\n", "    [[ ${COMPREPLY[0]} == *[=.] ]] && compopt -o nospace\n    return 0\n"),
    "zsh": (
        "compadd -U -V unsorted -a completions",
        '[[ "${completions[1]}" == *[=.] ]] && compadd -S "" -U -V unsorted -a completions'
        " || compadd -U -V unsorted -a completions",
    ),
}
"""By shell: what is replaced in the script of click, so that no space follows `KEY=`."""


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
    text = completer(cli, {}, "manyfit", "_MANYFIT_COMPLETE").source()
    before, after = NO_SPACE.get(shell, ("", ""))
    text = text.replace(before, after) if before else text
    say(text.replace("complete -o nosort", "complete -o default -o nosort"))
