"""`manyfit data`: whatever can be converted is read back as it was."""

from __future__ import annotations

import contextlib
import csv
import gzip
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from manyfit.cli import main
from manyfit.config.tree.nodes import plain
from manyfit.config.tree.reader import parse_yaml
from manyfit.data import once
from manyfit.data.tfrecord import metadata, verification
from manyfit.data.tfrecord.convert import as_yaml, table_of, write_shards
from manyfit.feeders import FixedLenFeature, ImageFeature, RawFeature, TFRecordExamplesFeeder, VarLenFeature

CLASSES = {c.__name__: c for c in (FixedLenFeature, ImageFeature, RawFeature, VarLenFeature)}


def run(*words: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main([str(word) for word in words])
    return int(stopped.value.code or 0)


def read(folder: Path, table, **more):
    """Read what was written, by what was said about it."""
    told = plain(parse_yaml(as_yaml(table.features()), "told"))
    maps = {
        key: {
            name: CLASSES[how.pop("type")](**{**how, **more.get(name, {})}) for name, how in features.items()
        }
        for key, features in told.items()
    }
    return list(once(TFRecordExamplesFeeder(str(folder / "train-*"), feed_as_dict=True, **maps), 1000))


def converted(source: Path, folder: Path, **how):
    table = table_of(source, **{k: how.pop(k) for k in ("kind", "column", "vocabulary", "most") if k in how})
    done = list(write_shards(table, folder, **how))
    assert sum(each.records for each in done) == len(table)
    assert not list(verification.verify_files(str(folder / "*"), deep=True))
    return table


@pytest.mark.parametrize("compression", ["", "gzip"])
def test_arrays(tmp_path, compression):
    given = {
        "x": np.random.default_rng(0).normal(size=(25, 2, 3)).astype(np.float32),
        "image": np.arange(25 * 4, dtype=np.uint8).reshape(25, 2, 2),
        "label": np.arange(25),
        "name": np.array([f"n{i}" for i in range(25)]),
    }
    np.savez(tmp_path / "a.npz", **given)
    table = converted(tmp_path / "a.npz", tmp_path / "out", shards=3, compression=compression, workers=2)
    assert len(list((tmp_path / "out").glob("train-*-of-00003*"))) == 3
    (batch,) = read(tmp_path / "out", table)
    assert batch.inputs["x"].tolist() == given["x"].tolist()
    assert batch.inputs["image"].tolist() == given["image"].tolist()
    assert batch.target.tolist() == given["label"].tolist()
    assert batch.inputs["name"].tolist() == [name.encode() for name in given["name"]]


def test_hdf5(tmp_path):
    h5py = pytest.importorskip("h5py")
    x = np.random.default_rng(0).normal(size=(7, 3))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["group/x"] = x
        file["label"] = np.arange(7)
    table = converted(tmp_path / "a.h5", tmp_path / "out")
    (batch,) = read(tmp_path / "out", table)
    assert batch.inputs["group_x"].tolist() == x.tolist()


def test_csv(tmp_path):
    (tmp_path / "a.csv").write_text('id,age,score,name,label\na,3,0.5,x y,1\nb,-4,1e3,"q,",0\nc,5,2,,1\n')
    table = converted(tmp_path / "a.csv", tmp_path / "out")
    (batch,) = read(tmp_path / "out", table, name={"default_value": "none"})
    assert batch.inputs["age"].tolist() == [[3], [-4], [5]]
    assert batch.inputs["score"].tolist() == [[0.5], [1000.0], [2.0]]
    assert batch.inputs["name"].tolist() == [[b"x y"], [b"q,"], [b"none"]]
    assert batch.target.tolist() == [1, 0, 1]


def test_text_with_a_vocabulary(tmp_path):
    (tmp_path / "a.csv").write_text("text,label\nthe cat sat,0\nThe dog,1\nthe the cat,0\n")
    table = converted(tmp_path / "a.csv", tmp_path / "out", column="text", most=3)
    words = (tmp_path / "out" / "_vocabulary.txt").read_text().split()
    assert words == ["<pad>", "<unk>", "the", "cat", "dog"]
    (batch,) = read(tmp_path / "out", table)
    assert batch.inputs["tokens"].tolist() == [[2, 3, 1], [2, 4, 0], [2, 2, 3]]
    (tmp_path / "b.txt").write_text("dog cat\n\nbird\n")
    again = converted(tmp_path / "b.txt", tmp_path / "out2", vocabulary=tmp_path / "out" / "_vocabulary.txt")
    (batch,) = read(tmp_path / "out2", again)
    assert batch.inputs["tokens"].tolist() == [[4, 3], [1, 0]]


def test_folders_of_images(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for name, kind in (("cats", "png"), ("dogs", "jpg"), ("dogs", "bmp")):
        (tmp_path / "in" / name).mkdir(parents=True, exist_ok=True)
        for i in range(3):
            pixels = np.full((8, 10, 3), 20 * i + (100 if name == "dogs" else 0), np.uint8)
            image.fromarray(pixels).save(tmp_path / "in" / name / f"{i}-{kind}.{kind}")
    table = converted(tmp_path / "in", tmp_path / "out", shards=2, workers=2)
    small = {"resize_height": 4, "resize_width": 4, "enforced_dtype": "uint8"}
    (batch,) = read(tmp_path / "out", table, **{"image/encoded": small})
    means = batch.inputs["image_encoded"].mean(axis=(1, 2, 3))
    assert sorted(zip(batch.target.tolist(), means.round().tolist(), strict=True)) == [
        (0, 0.0), (0, 20.0), (0, 40.0), (1, 100.0), (1, 100.0), (1, 120.0), (1, 120.0), (1, 140.0), (1, 140.0)
    ]  # fmt: skip
    assert (tmp_path / "out" / "_classes.txt").read_text() == "cats\ndogs\n"
    (tmp_path / "in" / "dogs" / "broken.jpg").write_bytes(b"no image")
    before = sorted(path.name for path in (tmp_path / "out").iterdir())
    with pytest.raises(SystemExit) as stopped:
        main(["data", "convert", str(tmp_path / "in"), str(tmp_path / "out"), "--force"])
    assert stopped.value.code == 2
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == before
    assert len(read(tmp_path / "out", table, **{"image/encoded": small})[0]) == 9


def test_the_verbs(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", x=np.zeros((10, 2), np.float32), label=np.arange(10))
    out = tmp_path / "out"
    assert run("data", "convert", tmp_path / "a.npz", out, "--shards", 2) == 0
    assert "labels_map:\n  label:" in capsys.readouterr().out
    assert run("data", "convert", tmp_path / "a.npz", out) == 2
    assert "--force" in capsys.readouterr().err
    assert run("data", "convert", tmp_path / "a.npz", out, "--force", "--shards", 3) == 0
    assert run("data", "convert", tmp_path / "a.npz", out, "--prefix", "test") == 0
    capsys.readouterr()
    assert run("data", "count", f"{out}/*", "--json") == 0
    assert json.loads(capsys.readouterr().out)["records"] == 20
    assert run("data", "verify", f"{out}/*", "--deep") == 0
    first = min(out.glob("train-*"))
    first.write_bytes(first.read_bytes()[:-1])
    assert run("data", "verify", f"{out}/*") == 1
    assert "resized" in capsys.readouterr().out
    assert run("data", "count", f"{out}/*") == 2
    assert run("data", "convert", tmp_path / "nothing.csv", out) == 2
    assert run("data", "index", f"{out}/nothing-*") == 2
    assert "no file matches" in capsys.readouterr().err


def test_splits_share_classes_and_vocabulary(tmp_path, capsys):
    (tmp_path / "train.csv").write_text("text,label\nthe cat,pos\nthe dog,neg\n")
    (tmp_path / "test.csv").write_text("text,label\ndog dog cat,pos\n")
    out = tmp_path / "out"
    assert run("data", "convert", tmp_path / "train.csv", out, "--column", "text") == 0
    assert "2 classes  neg, pos" in capsys.readouterr().out
    assert run("data", "convert", tmp_path / "test.csv", out, "--column", "text", "--prefix", "test") == 0
    assert (out / "_vocabulary.txt").read_text().split() == ["<pad>", "<unk>", "the", "cat", "dog"]
    maps = {
        "features_map": {"tokens": VarLenFeature("int64")},
        "labels_map": {"label": FixedLenFeature([1], "int64")},
    }
    (batch,) = once(TFRecordExamplesFeeder(str(out / "test-*"), **maps), 9)
    assert batch.inputs.tolist() == [[4, 4, 3]]
    assert batch.target.tolist() == [1]
    (tmp_path / "more.csv").write_text("text,label\ncat,maybe\n")
    assert run("data", "convert", tmp_path / "more.csv", out, "--column", "text", "--prefix", "more") == 2
    assert "of the existing records: maybe" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"a,b\n1\n", "2: 1 cells"),
        ("a.csv", b"\xff\xfea,b\n1,2\n", "utf-8"),
        ("a.csv", b"a,a\n1,2\n", "duplicate names"),
        ("a.csv", b"text,tokens\nx,1\n", "rename it"),
        ("a.csv", b"", "no header"),
        ("a.npz", b"no archive", "cannot be read as arrays"),
        ("a.npy", b"\x93NUMPY", "cannot be read as arrays"),
        ("a.h5", b"no such file", "cannot be read as arrays"),
        ("a.txt", b"\xff\xff\n", "not UTF-8"),
        ("a.xyz", b"?", "it must be a folder of images"),
    ],
)
def test_what_cannot_be_converted_is_one_message(tmp_path, capsys, name, content, words):
    (tmp_path / name).write_bytes(content)
    more = ["--column", "text"] if b"tokens" in content else []
    assert run("data", "convert", tmp_path / name, tmp_path / "out", *more) == 2
    error = capsys.readouterr().err
    assert words in error and "Traceback" not in error, error
    assert not list(tmp_path.glob("out/*"))


def test_force_removes_only_shards(tmp_path):
    (tmp_path / "a.csv").write_text("x,label\n1,2\n")
    out = tmp_path / "out"
    out.mkdir()
    (out / "train-notes-of-monday.txt").write_text("mine")
    assert run("data", "convert", tmp_path / "a.csv", out) == 0
    assert run("data", "convert", tmp_path / "a.csv", out, "--force") == 0
    assert (out / "train-notes-of-monday.txt").read_text() == "mine"


def test_numbers_that_do_not_fit_stay_what_they_are(tmp_path):
    (tmp_path / "a.csv").write_text(
        "id,code,label\n9007199254740993,2020_01,1\n99999999999999999999,1_000,0\n"
    )
    table = converted(tmp_path / "a.csv", tmp_path / "out")
    (batch,) = read(tmp_path / "out", table)
    assert batch.inputs["id"].tolist() == [[b"9007199254740993"], [b"99999999999999999999"]]
    assert batch.inputs["code"].tolist() == [[b"2020_01"], [b"1_000"]]
    given = {
        "flags": np.eye(3, dtype=bool),
        "deep": np.arange(9, dtype=np.uint16).reshape(3, 3),
        "label": np.arange(3),
    }
    np.savez(tmp_path / "b.npz", names=np.array([["a", "b"], ["c", "d"], ["e", "f"]]), **given)
    table = converted(tmp_path / "b.npz", tmp_path / "out2")
    (batch,) = read(tmp_path / "out2", table)
    assert batch.inputs["flags"].tolist() == given["flags"].tolist()
    assert batch.inputs["deep"].tolist() == given["deep"].tolist()
    assert batch.inputs["names"].tolist() == [[b"a", b"b"], [b"c", b"d"], [b"e", b"f"]]


def test_splits_may_be_converted_side_by_side(tmp_path):
    import subprocess
    import sys

    np.savez(tmp_path / "a.npz", x=np.zeros((2000, 2), np.float32), label=np.arange(2000))
    words = [sys.executable, "-m", "manyfit", "data", "convert", "a.npz", "out", "--prefix"]
    both = [
        subprocess.Popen([*words, name], cwd=tmp_path, stdout=subprocess.DEVNULL)
        for name in ("train", "test")
    ]
    assert [process.wait() for process in both] == [0, 0]
    assert sorted(metadata.load_index(str(tmp_path / "out"))) == [
        "test-00000-of-00001",
        "train-00000-of-00001",
    ]
    assert not list((tmp_path / "out").glob(".new-*"))


# -- classes, replacement and strangers -----------------------------------------------------------


def test_a_class_with_a_line_break_in_its_name_is_refused_and_other_separators_are_kept(tmp_path, capsys):
    (tmp_path / "a.csv").write_text('label,x\n"a\nb",1\nc,2\n')
    assert run("data", "convert", tmp_path / "a.csv", tmp_path / "d") == 2
    assert "'a\\nb'" in capsys.readouterr().err and not list(tmp_path.glob("d/*"))
    odd = ["a\u2028b", "c\x85d", "e\x1cf", "g"]
    (tmp_path / "b.csv").write_text("label,x\n" + "".join(f"{name},1\n" for name in odd), "utf-8")
    (tmp_path / "c.csv").write_text("label,x\ng,1\n", "utf-8")
    first = converted(tmp_path / "b.csv", tmp_path / "d")
    second = table_of(tmp_path / "c.csv", beside=tmp_path / "d")
    assert list(second.classes) == list(first.classes) == sorted(odd)


def test_names_of_classes_with_other_line_ends(tmp_path):
    (tmp_path / "_classes.txt").write_bytes(b"cat\r\ndog\r\n")
    (tmp_path / "a.csv").write_text("label,x\ndog,2\n")
    assert list(table_of(tmp_path / "a.csv", beside=tmp_path).classes) == ["cat", "dog"]


def test_names_of_classes_that_are_not_utf8(tmp_path, capsys):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "_classes.txt").write_bytes(b"\xff\n")
    (tmp_path / "a.csv").write_text("label,x\nc,2\n")
    assert run("data", "convert", tmp_path / "a.csv", tmp_path / "d") == 2
    assert "_classes.txt cannot be read" in capsys.readouterr().err


def test_shards_that_were_deleted_leave_the_index_when_others_are_written(tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n" + "1,2\n" * 6)
    converted(tmp_path / "a.csv", tmp_path / "d", shards=2)
    for file in (tmp_path / "d").glob("train-*"):
        file.unlink()
    converted(tmp_path / "a.csv", tmp_path / "d", shards=3)
    assert sorted(metadata.load_index(str(tmp_path / "d"))) == [f"train-0000{i}-of-00003" for i in range(3)]


def test_names_of_classes_are_written_before_the_records(tmp_path, monkeypatch):
    (tmp_path / "a.csv").write_text("label,x\nb,1\na,2\n")
    replaced = Path.replace

    def dies(self, target):
        if target.parent == tmp_path / "d" and target.name.startswith("train-"):
            assert (tmp_path / "d" / "_classes.txt").read_text() == "a\nb\n"
            raise KeyboardInterrupt
        return replaced(self, target)

    monkeypatch.setattr(Path, "replace", dies)
    with pytest.raises(KeyboardInterrupt):
        list(write_shards(table_of(tmp_path / "a.csv"), tmp_path / "d"))
    assert not list((tmp_path / "d").glob("train-*"))


def test_no_process_is_left_of_a_conversion_that_was_killed(tmp_path):
    np.savez(tmp_path / "a.npz", x=np.zeros((60_000, 40), np.float32))
    line = [
        sys.executable,
        "-m",
        "manyfit",
        "data",
        "convert",
        "a.npz",
        "d",
        "--shards",
        "8",
        "--workers",
        "2",
    ]
    process = subprocess.Popen(line, cwd=tmp_path)
    deadline = time.monotonic() + 60
    while not (children := grandchildren(process.pid)) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(children) > 0, "no worker was ever seen"
    process.kill()
    process.wait()
    while any(Path(f"/proc/{child}/cmdline").exists() for child in children):
        assert time.monotonic() < deadline, "workers outlive whoever has started them"
        time.sleep(0.05)


def grandchildren(pid):
    """Processes of the fork server of a process."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    servers = {child for child, parent in parents.items() if parent == pid}
    return [child for child, parent in parents.items() if parent in servers]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("columns.tsv", b"X\tY\n1\t2\n"),
        ("labels.txt", b"80 classes\n"),
        ("notes.txt", b"x marks the place\n"),
        ("short.gz", gzip.compress(b"a text", mtime=0)),
    ],
    ids=["tsv", "digits", "text", "gzip"],
)
def test_texts_that_look_as_if_they_were_compressed_are_left_out(tmp_path, capsys, name, content):
    (tmp_path / "a.csv").write_text("x,y\n1,2\n")
    list(write_shards(table_of(tmp_path / "a.csv"), tmp_path / "d"))
    (tmp_path / "d" / name).write_bytes(content)
    assert run("data", "index", "--force", tmp_path / "d" / "*") == 0
    assert name in capsys.readouterr().err
    assert run("data", "count", tmp_path / "d" / "*") == 0
    capsys.readouterr()
    assert run("data", "verify", tmp_path / "d" / "*") == 0
    assert "1 files" in capsys.readouterr().out
    assert not list(verification.verify_files(str(tmp_path / "d" / "*"), deep=True))


def test_a_csv_of_another_name_without_a_header(tmp_path):
    (tmp_path / "iris.data").write_text("1,2\n3,4\n")
    assert run("data", "convert", tmp_path / "iris.data", tmp_path / "d", "--kind", "csv", "--no-header") == 0
    assert sorted(metadata.load_index(str(tmp_path / "d"))["train-00000-of-00001"].features) == ["c0", "c1"]


def test_names_that_yaml_would_misread_are_quoted(tmp_path):
    names = [
        "a: b",
        "#c",
        "no",
        "1x",
        "image/x",
        "a\u2028b",
        "c\x85d",
        "e\x7ff",
        "\U0001f600",
        "ü",
        'q"q',
        "b\\n",
    ]
    with (tmp_path / "a.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([names, range(len(names))])
    table = converted(tmp_path / "a.csv", tmp_path / "d")
    told = plain(parse_yaml(as_yaml(table.features()), "told"))
    assert list(told["features_map"]) == names
    import yaml

    assert list(yaml.safe_load(as_yaml(table.features()))["features_map"]) == list(told["features_map"])


def test_a_table_of_pandas_with_its_index(tmp_path, capsys):
    (tmp_path / "a.csv").write_text(",a,b\n0,1,2\n1,3,4\n")
    assert run("data", "convert", tmp_path / "a.csv", tmp_path / "d") == 0
    assert "column 1" in capsys.readouterr().err
    assert sorted(metadata.load_index(str(tmp_path / "d"))["train-00000-of-00001"].features) == [
        "a",
        "b",
        "c0",
    ]


def test_a_column_without_a_name_is_refused(tmp_path, capsys):
    (tmp_path / "a.csv").write_text("1,2,3\n")
    assert run("data", "convert", tmp_path / "a.csv", tmp_path / "d", "--names", "a,,b") == 2
    assert "column 2" in capsys.readouterr().err
