"""Draw the terminal output of some example commands into docs/assets/train.svg."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

COMMANDS = [
    "manyfit train runs/digits-mlp",
    "manyfit list",
    "manyfit train runs/digits-mlp -p model.hiden 64",
]
WIDTH = 124


def on_a_terminal(command: str, folder: Path) -> str:
    """Run a command in a separate terminal and return the final contents of that terminal."""
    main, terminal = pty.openpty()
    environment = {
        **os.environ,
        "TERM": "xterm-256color",
        "COLUMNS": str(WIDTH),
        "LINES": "40",
        "FORCE_COLOR": "1",
    }
    process = subprocess.Popen(
        command, shell=True, cwd=folder, stdout=terminal, stderr=terminal, env=environment
    )
    os.close(terminal)
    shown = b""
    while True:
        try:
            chunk = os.read(main, 65536)
        except OSError:
            break
        if not chunk:
            break
        shown += chunk
    process.wait()
    lines = shown.decode().replace("\r\n", "\n").split("\n")
    # A progress bar redraws its line: only the last version of each line counts.
    kept = [line.rpartition("\r")[2].rpartition("\x1b[2K")[2] for line in lines]
    return "\n".join(line.replace("\x1b[?25l", "").replace("\x1b[?25h", "") for line in kept).rstrip("\n")


def main() -> None:
    """Write docs/assets/train.svg."""
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    console = Console(record=True, width=WIDTH, file=Path(os.devnull).open("w"), force_terminal=True)  # noqa: SIM115
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run("manyfit init .", shell=True, cwd=folder, check=True, capture_output=True)
        for command in COMMANDS:
            console.print(Text(f"$ {command}", style="bold green"))
            console.print(Text.from_ansi(on_a_terminal(command, Path(folder))), soft_wrap=True)
            console.print()
    picture = console.export_svg(title="manyfit")
    # The picture must not load external files: any monospaced font will do.
    picture = re.sub(r"@font-face \{.*?\}\s*", "", picture, flags=re.DOTALL)
    (Path(__file__).with_name("assets") / "train.svg").write_text(picture)


if __name__ == "__main__":
    main()
