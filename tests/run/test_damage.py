"""A run folder that a disk, a crash or a person has damaged: one clear error, and nothing is lost."""

from __future__ import annotations

import itertools
import json
import random
import shutil

import pytest

import manyfit

FILES = [
    "manifest.json",
    "state.safetensors",
    "summary.json",
    "provenance.json",
    "config.resolved.yaml",
    "metrics.jsonl",
]
WHOLE = ["empty", "truncated", "garbage", "deep", "flipped", "missing", "list", "binary"]
VALUES = [None, "x", -1, [], {}, 1.5, True]


def place(run, name):
    return next(path for path in run.rglob(name))


def break_whole(path, how):
    data = path.read_bytes()
    broken = {
        "empty": b"", "truncated": data[: len(data) // 2], "garbage": b"garbage\n", "deep": b"[" * 200_000, "list": b"[1, 2]",
        "flipped": bytes([data[0] ^ 0xFF]) + data[1:], "binary": bytes(range(256)),
    }  # fmt: skip
    path.unlink()
    if how != "missing":
        path.write_bytes(broken[how])


def fields(value, path=()):
    """Every key of a JSON document, at any depth that matters."""
    if isinstance(value, dict) and len(path) < 3:
        for key, item in value.items():
            yield (*path, key)
            yield from fields(item, (*path, key))
    elif isinstance(value, list) and value and len(path) < 3:
        yield (*path, 0)
        yield from fields(value[0], (*path, 0))


def with_value(document, path, value):
    place = document
    for step in path[:-1]:
        place = place[step]
    if value == "delete":
        del place[path[-1]]
    else:
        place[path[-1]] = value
    return document


@pytest.fixture
def finished(project):
    """A finished run, and a way to get it back."""
    project.config(project.changed(train__epochs=1))
    manyfit.train("runs/a", callbacks=[])
    shutil.copytree(project.run, project.root / "whole")

    def restore():
        shutil.rmtree(project.run)
        shutil.copytree(project.root / "whole", project.run)
        return project.run

    return restore


def survive(cli, restore, breaks):
    """Every verb ends with a result or with one clear error."""
    for words in (
        ["list"],
        ["show", "runs/a"],
        ["config", "show", "runs/a"],
        ["train", "runs/a"],
        ["train", "runs/a", "train.epochs=2"],
    ):
        run = restore()
        breaks(run)
        answer = cli(*words)
        assert "Traceback" not in answer.err, f"{words}\n{answer.err}"
        assert "bug in manyfit" not in answer.err
        assert answer.code in (0, 2), f"{words}: {answer.code}\n{answer.err}"
        if answer.code == 2:
            assert "manyfit: " in answer.err


CASES = list(itertools.product(FILES, WHOLE))


@pytest.mark.parametrize(("name", "how"), random.Random(1).sample(CASES, 12))
def test_damaged_files(finished, cli, name, how):
    survive(cli, finished, lambda run: break_whole(place(run, name), how))


@pytest.mark.soak
@pytest.mark.parametrize(("name", "how"), CASES)
def test_all_damaged_files(finished, cli, name, how):
    survive(cli, finished, lambda run: break_whole(place(run, name), how))


def changes(run):
    for name in ("manifest.json", "summary.json", "provenance.json"):
        document = json.loads(place(run, name).read_text())
        for path, value in itertools.product(fields(document), [*VALUES, "delete"]):
            if path[:2] != ("values", "model") and path[0] != "values":
                yield name, path, value


def change(run, name, path, value):
    file = place(run, name)
    file.write_text(json.dumps(with_value(json.loads(file.read_text()), path, value)))


def test_changed_values(finished, cli):
    for name, path, value in random.Random(2).sample(list(changes(finished())), 25):
        survive(cli, finished, lambda run, c=(name, path, value): change(run, *c))


@pytest.mark.soak
@pytest.mark.parametrize("part", range(8))
def test_all_changed_values(finished, cli, part):
    for name, path, value in list(changes(finished()))[part::8]:
        survive(cli, finished, lambda run, c=(name, path, value): change(run, *c))
