"""Checkpoints: damaged and newer ones, replacement, and what is kept."""

import shutil

import pytest
import torch

import manyfit
from manyfit.core.errors import FolderError
from manyfit.core.state import State
from manyfit.store.checkpoint import Keep, checkpoints, newest, prune_checkpoints, save_checkpoint
from manyfit.store.folder import RunFolder
from manyfit.store.manifest import FORMAT, Note


def note(step, **metrics):
    return Note(step, float(step), metrics, step)


def put(folder, step, **metrics):
    return save_checkpoint(folder, State({"w": torch.full((2,), float(step))}, {}), note(step, **metrics))


def test_what_was_passed_over_neither_counts_nor_is_lost(project, caplog):
    words = ["train.every.checkpoint=1ep", "export.keep=1"]
    manyfit.train("runs/a", ["train.epochs=6", *words], callbacks=[])
    run = RunFolder(project.run)
    last = run.checkpoints()[-1]
    shutil.copytree(last.path, last.path.with_name("step-000000099"))
    (last.path.with_name("step-000000099") / "state.safetensors").write_bytes(b"no")
    (last.path.parent / "NOTES.txt").write_text("mine")
    manyfit.train("runs/a", ["train.epochs=8", *words], callbacks=[])
    assert "resuming from step" in caplog.text
    assert run.checkpoints()[-1].step == 32
    assert (last.path.parent / "damaged-step-000000099").is_dir()
    assert (last.path.parent / "NOTES.txt").read_text() == "mine"


def test_a_newer_format_is_not_damage(tmp_path):
    put(tmp_path, 1, val_loss=1.0)
    path = put(tmp_path, 2, val_loss=0.5).path / "manifest.json"
    path.write_text(path.read_text().replace(f'"format": {FORMAT}', f'"format": {FORMAT + 1}'))
    with pytest.raises(FolderError, match="use a newer version of manyfit"):
        newest(tmp_path)
    put(tmp_path, 3, val_loss=2.0)
    prune_checkpoints(tmp_path, Keep("val_loss", "min", last=1))
    assert path.exists()


def test_replacing_a_checkpoint_never_leaves_none(tmp_path):
    from manyfit.store import durable

    put(tmp_path, 1, val_loss=1.0)
    seen = []

    def look(operation, path):
        hidden = list(tmp_path.glob(".step-*.old"))
        seen.append(bool(checkpoints(tmp_path)) or any((h / "manifest.json").exists() for h in hidden))

    durable.before = look
    try:
        put(tmp_path, 1, val_loss=1.0)
    finally:
        durable.before = None
    assert seen
    assert all(seen)


def test_what_is_kept_on_disk(project):
    tree = project.changed(train__epochs=8, train__every={"checkpoint": "1ep"})
    tree["export"] = {"metric": "val_loss", "keep": 3, "top": 2}
    result = manyfit.train(tree, folder="runs/b", callbacks=[])
    kept = {c.step for c in RunFolder(result.folder).checkpoints()}
    ranked = sorted(result.history, key=lambda e: (e.values["val_loss"], e.step))
    assert {24, 28, 32} <= kept
    assert {e.step for e in ranked[:2]} <= kept
    assert len(kept) <= 5
