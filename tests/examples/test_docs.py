"""What the documentation shows, works: its files are written, its commands are run, in the order of the page."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.examples.quick import run

ROOT = Path(__file__).parents[2]
PAGES = sorted(page for page in (ROOT / "docs").glob("*.md") if "```console" in page.read_text())
BLOCK = re.compile(r"^```(\w+)(?: title=\"([^\"]+)\")?\n(.*?)^```$", flags=re.DOTALL | re.MULTILINE)


SLOW = (
    "scale",
    "resuming", "variants", "configuration", "experiments", "shards", "five-components", "training",
    "trainers", "files", "cookbook", "evaluation",
)  # fmt: skip
"""What other tests prove as well, in less time."""


@pytest.mark.parametrize(
    "page",
    [pytest.param(p, id=p.stem, marks=[pytest.mark.soak] if p.stem in SLOW else []) for p in PAGES],
)
def test_page(page, tmp_path):
    said = ""
    for language, title, body in BLOCK.findall(page.read_text()):
        if title == "output":
            check_output(body, said, page.stem)
            continue
        if title:
            (tmp_path / title).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / title).write_text(body)
        for line in body.splitlines() if language == "console" else []:
            command, _, comment = line.removeprefix("$ ").partition("  #")
            done = run(command.strip(), tmp_path)
            expected = int(comment.rpartition(" ")[2]) if "exits with" in comment else 0
            assert done.returncode == expected, f"{command}\n{done.stdout}\n{done.stderr}"
            said = done.stdout + done.stderr


def check_output(shown, said, page):
    """What a page shows of the output of a command is part of it; numbers may differ, and `…` is anything."""

    def hide_numbers(text):
        return re.sub(r"[\d.,]+(e[-+]?\d+)?", "#", " ".join(text.split()))

    known = [hide_numbers(line) for line in said.splitlines()]
    for line in shown.splitlines():
        parts = [re.escape(hide_numbers(part)) for part in line.split("…")]
        pattern = re.compile(r"\s*" + r".*".join(parts) + r"\s*")
        assert any(pattern.fullmatch(each) for each in known), f"{page}: {line!r} is not in\n{said}"


def test_the_errors_that_the_docs_show_are_the_real_ones(tmp_path):
    page = (ROOT / "docs/first-run.md").read_text()
    blocks = BLOCK.findall(page)
    shown = next(body for language, title, body in blocks if language == "text" and not title)
    wrong = next(body for _, title, body in blocks if title == "runs/wrong/config.yaml")
    manyfit = [sys.executable, "-m", "manyfit"]
    subprocess.run([*manyfit, "init", "."], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "runs/wrong").mkdir()
    (tmp_path / "runs/wrong/config.yaml").write_text(wrong)
    done = subprocess.run(
        [*manyfit, "config", "check", "runs/wrong"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    for line in shown.splitlines():
        assert line.removesuffix("…").rstrip() in done.stderr


def test_the_readme_shows_the_config_that_init_writes():
    config = (ROOT / "src/manyfit/cli/templates/project/runs/digits-mlp/config.yaml").read_text()
    assert config in (ROOT / "README.md").read_text()


def test_links_lead_somewhere():
    for page in [
        ROOT / "README.md",
        ROOT / "CONTRIBUTING.md",
        ROOT / "SECURITY.md",
        *(ROOT / "docs").rglob("*.md"),
        ROOT / "examples/README.md",
    ]:
        for link in re.findall(r"\]\((?!https://)([^)#]+)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name}: {link}"


def test_the_reference_has_every_public_name():
    import importlib

    page = (ROOT / "docs/api.md").read_text()
    for module in re.findall(r"^## .*`(manyfit[\w.]*)`$", page, flags=re.MULTILINE):
        names = [n for n in importlib.import_module(module).__all__ if not n.startswith("_")]
        listed = re.findall(rf"^::: {re.escape(module)}\.(\w+)$", page, flags=re.MULTILINE)
        assert sorted(listed) == sorted(names), module
