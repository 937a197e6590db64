"""A run folder that somebody has prepared: nothing in it runs, and nothing is written outside of it."""

from __future__ import annotations

import json
import pickle
import shutil
import zipfile
from pathlib import Path

import pytest

import manyfit
from manyfit.store.folder import WRITTEN


class Bomb:
    """Unpickling it leaves a mark."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


@pytest.fixture
def finished(project):
    manyfit.train("runs/a", ["train.every.checkpoint=1ep"], callbacks=[])
    return project


VERBS = (
    ["list"],
    ["show", "runs/a"],
    ["train", "runs/a"],
    ["train", "runs/a", "train.epochs=3"],
    ["evaluate", "runs/a"],
    ["predict", "runs/a"],
    ["export", "runs/a"],
    ["compare", "runs/a", "runs/a"],
    ["track", "sync", "runs/a"],
    ["check", "runs/a"],
)


def survive(cli, project, mark, spoil):
    shutil.copytree(project.run, project.root / "whole", symlinks=True, dirs_exist_ok=True)
    for words in VERBS:
        shutil.rmtree(project.run)
        shutil.copytree(project.root / "whole", project.run, symlinks=True)
        spoil(project.run)
        answer = cli(*words)
        assert not mark.exists(), words
        assert "Traceback" not in answer.err, f"{words}\n{answer.err}"
        assert "bug in manyfit" not in answer.err
        assert answer.code in (0, 1, 2)


def files(run: Path) -> list[Path]:
    return [
        path
        for path in run.rglob("*")
        if path.is_file() and path.name not in (".lock", "config.yaml", "run.log")
    ]


KINDS = ["manifest.json", "state.safetensors", "summary.json", "provenance.json", "config.resolved.yaml", "metrics.jsonl",
         "model.json", "model.safetensors", "test.csv", "validation.csv"]  # fmt: skip


FEW = ("manifest.json", "state.safetensors", "config.resolved.yaml", "model.json", "test.csv")


@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.soak) for name in KINDS]
)
def test_a_pickle_in_every_file_that_is_read(finished, cli, tmp_path, name):
    mark = tmp_path / "mark"
    data = pickle.dumps(Bomb(mark))

    def spoil(run):
        for path in files(run):
            if path.name == name:
                path.write_bytes(data)

    assert any(path.name == name for path in files(finished.run))
    survive(cli, finished, mark, spoil)


def test_torch_zip_in_place_of_weights(finished, cli, tmp_path):
    """A zip with a pickle and with paths that lead out of the folder."""
    mark = tmp_path / "mark"
    archive = tmp_path / "weights.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", pickle.dumps(Bomb(mark)))
        file.writestr("../../../escaped", "out")

    def spoil(run):
        for path in files(run):
            if path.suffix == ".safetensors":
                path.write_bytes(archive.read_bytes())

    survive(cli, finished, mark, spoil)
    assert not list(tmp_path.parent.glob("escaped"))


@pytest.mark.parametrize(
    "tag",
    [
        "!!python/object/apply:pathlib.Path.touch [{mark}]",
        "!!python/name:os.system",
        "!!python/object/new:os.system ['touch {mark}']",
    ],
)
def test_yaml_tags(finished, cli, tmp_path, tag):
    mark = tmp_path / "mark"
    text = tag.replace("{mark}", str(mark))

    def spoil(run):
        for name in ("config.resolved.yaml", "config.yaml"):
            (run / name).write_text(f"seed: {text}\n{(run / name).read_text()}")

    survive(cli, finished, mark, spoil)


@pytest.mark.parametrize("name", [name for name in WRITTEN if name != "failure.json"])
def test_links_out_of_the_folder(finished, cli, tmp_path, name):
    outside = tmp_path / "outside"
    outside.mkdir()
    kept = outside / "kept"
    kept.write_text("kept\n")

    def spoil(run):
        place = run / name
        target = outside if place.is_dir() or name in ("exported", "tensorboard") else kept
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
        place.symlink_to(target)

    survive(cli, finished, tmp_path / "mark", spoil)
    assert [path.name for path in outside.iterdir()] == ["kept"]
    assert kept.read_text() == "kept\n"


@pytest.mark.parametrize("path", ["../../../../escaped", "/tmp/escaped-by-manyfit", "a/b"])
def test_names_in_a_manifest_that_lead_out(finished, path):
    import hashlib

    from manyfit.core.errors import FolderError
    from manyfit.store.checkpoint import read

    folder = next((finished.run / "checkpoints").iterdir())
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest.pop("digest")
    manifest["files"] = {path: "0"}
    text = json.dumps(manifest, sort_keys=True, separators=(",", ":"))
    manifest["digest"] = hashlib.sha256(text.encode()).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(FolderError, match="outside of its folder"):
        read(folder)


def test_a_class_path_in_an_export_is_checked_for_its_role(finished, cli):
    card = finished.run / "exported/model.json"
    document = json.loads(card.read_text())
    for path in ("os.system", "subprocess.Popen", "torch.load", "pathlib.Path.touch"):
        document["model"]["component"] = {"class": path, "f": "x"}
        card.write_text(json.dumps(document))
        with pytest.raises(manyfit.ConfigError):
            manyfit.load_model(finished.run / "exported")
