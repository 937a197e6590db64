"""The nine tasks: shorter than with Lightning, and as good."""

import ast
import io
import re
import shutil
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TASKS = ROOT / "examples" / "16_tasks"
NAMES = sorted(path.stem for path in (TASKS / "lightning").glob("*.py"))
CODE = {
    "plots": ["plots.py", "src/architectures.py"],
    "images": ["src/images.py", "runs/images-base/config.yaml", "runs/images/config.yaml"],
}


def files(name):
    """The files of a task with manyfit."""
    usual = [f"src/{name}.py", f"runs/{name}/config.yaml", f"studies/{name}/study.yaml"]
    return [TASKS / file for file in CODE.get(name, usual) if (TASKS / file).exists()]


def count(path):
    """The lines that are neither blank nor comments nor docstrings."""
    text = path.read_text()
    if path.suffix != ".py":
        return sum(bool(line.split("#")[0].strip()) for line in text.splitlines())
    docs = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            docs |= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    skipped = (
        tokenize.COMMENT,
        tokenize.NL,
        tokenize.NEWLINE,
        tokenize.INDENT,
        tokenize.DEDENT,
        tokenize.ENDMARKER,
    )
    found = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in skipped:
            found |= set(range(token.start[0], token.end[0] + 1))
    return len(found - docs)


@pytest.mark.parametrize("name", NAMES)
def test_a_task_takes_fewer_lines_than_with_lightning(name):
    own, other = sum(map(count, files(name))), count(TASKS / "lightning" / f"{name}.py")
    assert own < other
    table = (ROOT / "docs/from-lightning.md").read_text()
    (shown,) = re.findall(rf"^\| `{name}` \|[^|]*\| (\d+) \| (\d+) \|$", table, flags=re.MULTILINE)
    assert shown == (str(own), str(other))


def test_there_are_nine():
    assert len(NAMES) == 9


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_the_version_with_lightning_runs(name, tmp_path):
    place = tmp_path / "tasks"
    shutil.copytree(TASKS, place, ignore=shutil.ignore_patterns("runs", "studies", "data", "__pycache__"))
    for script in ("make_data.py", f"lightning/{name}.py"):
        done = subprocess.run(
            [sys.executable, script], cwd=place, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == 0, done.stderr
