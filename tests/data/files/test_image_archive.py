"""Folders of images converted to HDF5: the same rows."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from manyfit.data import Hdf5, ImageFolder, once


def write(folder, count=5, size=(9, 9), mode="RGB"):
    dice = np.random.RandomState(0)
    for kind in ("cat", "dog"):
        (folder / kind).mkdir(parents=True)
        for i in range(count):
            shape = (*size, 3) if mode == "RGB" else size
            Image.fromarray(dice.randint(0, 256, shape).astype(np.uint8)).save(folder / kind / f"{i}.png")


@pytest.mark.parametrize("has_splits", [False, True])
@pytest.mark.parametrize(("channels", "size"), [(3, None), (1, 6)])
def test_the_file_has_the_same_rows(tmp_path, monkeypatch, cli, has_splits, channels, size):
    monkeypatch.chdir(tmp_path)
    for split in ("train", "validation") if has_splits else (".",):
        write(tmp_path / "images" / split)
    words = ["--channels", channels, *(["--size", size] if size else [])]
    answer = cli("data", "convert", "images", "out/images.h5", *words, "--json")
    assert answer.code == 0, answer.err
    counted = json.loads(answer.out)["images"]
    assert counted == ({"train": 10, "validation": 10} if has_splits else {"all": 10})
    files = Hdf5(tmp_path / "out/images.h5", "image", "target", "id", validation=0.2, test=0.2)
    known = ImageFolder(tmp_path / "images", size, channels, validation=0.2, test=0.2)
    rows = {}
    for data in (files, known):
        for split in ("train", "validation", "test"):
            source = data.source(split)
            for batch in once(source, 4) if source is not None else ():
                for id_, image, label in zip(
                    source.ids(batch.index), batch.inputs, batch.target, strict=True
                ):
                    key = (split, id_)  # the splits are the same, too
                    rows.setdefault(key, []).append((np.asarray(image).tobytes(), int(label)))
    assert len(rows) == (20 if has_splits else 10)
    assert all(len(found) == 2 and found[0] == found[1] for found in rows.values())
    assert dict(files.facts())["class_names"] == ["cat", "dog"]


def test_what_cannot_be_converted_is_one_error(tmp_path, monkeypatch, cli):
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "images")
    Image.fromarray(np.zeros((5, 7, 3), dtype=np.uint8)).save(tmp_path / "images/dog/odd.png")
    answer = cli("data", "convert", "images", "images.h5")
    assert answer.code == 2
    assert "odd.png is 7 × 5 pixels" in answer.err and "--size" in answer.err
    assert not list(tmp_path.glob("*.h5")) and not list(tmp_path.glob(".*"))
    assert cli("data", "convert", "images", "images.h5", "--size", 8).code == 0
    assert "--force" in cli("data", "convert", "images", "images.h5", "--size", 8).err
    assert cli("data", "convert", "images", "images.h5", "--size", 4, "--force").code == 0
    assert (
        "--shards is for TFRecord files only" in cli("data", "convert", "images", "i.h5", "--shards", 2).err
    )
    assert "--size is for an HDF5 file" in cli("data", "convert", "images", "records", "--size", 8).err
    (tmp_path / "dir.h5").mkdir()
    assert "dir.h5 is a folder" in cli("data", "convert", "images", "dir.h5", "--size", 8, "--force").err
    assert "there is no folder nowhere" in cli("data", "convert", "nowhere", "n.h5").err
    (tmp_path / "file").write_text("")
    assert "is a file" in cli("data", "convert", "images", "file").err
