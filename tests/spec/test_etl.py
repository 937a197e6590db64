"""ETL: every row is in exactly one shard, whatever happens."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from manyfit.core.errors import ManyfitError, RunFailed, UsageError
from manyfit.data.etl.command import load_spec
from manyfit.data.etl.plan import EtlOptions, divide
from manyfit.data.etl.run import collect_misc, run_etl
from manyfit.data.etl.tables import read_table
from manyfit.data.prepared import open_split
from manyfit.spec import ETLSpec


class Numbers(ETLSpec):
    def set_features(self):
        self.features = ["value", "label"]

    def row_prep(self, row, mode, object_dir):
        if row.label == "bad":
            raise ValueError("a bad row")
        return np.array([row["value"], 1.0], dtype=np.float32), int(row.label)


def write_csv(path, rows, bad=(), prefix="r"):
    lines = [
        "id,value,label",
        *(f"{prefix}{i},{i * 0.5},{'bad' if i in bad else i % 3}" for i in range(rows)),
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def every_id(folder, split="train"):
    source = open_split(folder, split)
    return [source.ids(source.layout.rows(shard)) for shard in range(source.layout.shards)]


def test_rows_come_out_as_they_were_prepared(tmp_path):
    table = read_table("train", str(write_csv(tmp_path / "t.csv", 300)))
    found = run_etl(Numbers(), [table], tmp_path / "etl", EtlOptions(shards=3, workers=1))
    assert found.proof == ["train: 300 rows in = 300 rows out + 0 failed, in 3 shards"]
    source = open_split(found.folder, "train")
    batch = source.gather(np.array([0, 299, 150]))
    for id_, x, y in zip(source.ids(np.array([0, 299, 150])), batch.inputs, batch.target, strict=True):
        number = int(id_[1:])
        assert x.tolist() == [number * 0.5, 1.0]
        assert y == number % 3
    again = run_etl(Numbers(), [table], tmp_path / "etl", EtlOptions(shards=3, workers=2))
    assert again.is_reused
    assert again.folder == found.folder


@given(rows=st.integers(1, 400), shards=st.integers(1, 7), data=st.data())
def test_shards_are_sized_by_capacity(rows, shards, data):
    capacities = tuple(data.draw(st.lists(st.floats(0.1, 9), min_size=shards, max_size=shards)))
    sizes = divide(rows, EtlOptions(shards=shards, capacities=capacities))
    assert sum(sizes) == rows
    assert len(sizes) == min(rows, shards)
    assert min(sizes) >= 1
    exact = [rows * c / sum(capacities[: len(sizes)]) for c in capacities[: len(sizes)]]
    if min(exact) >= 1:
        assert all(abs(size - wanted) <= 1 for size, wanted in zip(sizes, exact, strict=True))


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize("policy", ["stop", "skip", "quarantine"])
def test_rows_that_fail_are_handled_by_policy(tmp_path, policy, workers):
    bad = {5, 17, 250}
    table = read_table("train", str(write_csv(tmp_path / "t.csv", 300, bad)))
    options = EtlOptions(shards=2, on_error=policy, workers=workers)
    if policy == "stop":
        with pytest.raises(RunFailed, match=r"the row 'r\d+' of train failed: ValueError: a bad row"):
            run_etl(Numbers(), [table], tmp_path / "etl", options)
        return
    found = run_etl(Numbers(), [table], tmp_path / "etl", options)
    assert found.failed == {"train": 3}
    ids = [id_ for shard in every_id(found.folder) for id_ in shard]
    assert sorted(ids) == sorted(f"r{i}" for i in range(300) if i not in bad)
    file = found.folder / "quarantine.csv"
    assert file.exists() == (policy == "quarantine")
    if file.exists():
        lines = file.read_text().splitlines()
        assert {line.split(",")[1] for line in lines[1:]} == {"r5", "r17", "r250"}


def test_the_same_shards_on_any_number_of_workers(tmp_path):
    table = read_table("train", str(write_csv(tmp_path / "t.csv", 500)))
    prints = set()
    for workers in (1, 3):
        options = EtlOptions(shards=3, workers=workers, capacities=(3, 1, 2), fraction=0.7, seed=5)
        found = run_etl(Numbers(), [table], tmp_path / f"etl{workers}", options)
        prints.add(open_split(found.folder, "train").fingerprint())
        assert found.rows == {"train": 350}
    assert len(prints) == 1


KILLED = """
import sys
from manyfit.data.etl.plan import EtlOptions
from manyfit.data.etl.run import run_etl
from manyfit.data.etl.tables import read_table
from manyfit.spec import ETLSpec

class Slow(ETLSpec):
    def row_prep(self, row, mode, object_dir):
        import time
        import numpy as np
        time.sleep(0.0005)
        if row.label == "bad":
            raise ValueError("a bad row")
        return np.array([row["value"], 1.0], dtype=np.float32), int(row.label)

place, workers, capacities = sys.argv[1], int(sys.argv[2]), tuple(map(float, sys.argv[3].split(",")))
options = EtlOptions(shards=len(capacities), capacities=capacities, workers=workers, on_error="skip")
found = run_etl(Slow(), [read_table("train", place + "/t.csv")], __import__("pathlib").Path(place) / "etl", options)
print(found.folder)
"""


def kill_etl(tmp_path, seed, rows, kills):
    dice = random.Random(seed)
    bad = set(dice.sample(range(rows), rows // 50))
    write_csv(tmp_path / "t.csv", rows, bad)
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    capacities = ",".join(f"{dice.uniform(0.2, 3):.3f}" for _ in range(dice.randint(1, 7)))

    def start():
        command = [sys.executable, str(script), str(tmp_path), str(dice.randint(1, 7)), capacities]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    for _ in range(kills):
        process = start()
        time.sleep(dice.uniform(1.0, 3.0))
        process.send_signal(signal.SIGKILL)
        process.wait()
    process = start()
    folder = Path(process.communicate(timeout=300)[0].strip())
    counts = Counter(id_ for shard in every_id(folder) for id_ in shard)
    assert set(counts.values()) == {1}
    assert set(counts) == {f"r{i}" for i in range(rows) if i not in bad}
    layout = json.loads((folder / "layout.json").read_text())["splits"]["train"]
    assert layout["rows_in"] == layout["rows"] + layout["failed"] == rows


def test_a_killed_etl_is_continued(tmp_path):
    kill_etl(tmp_path, seed=1, rows=4_000, kills=1)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(8))
def test_a_hundred_thousand_rows_with_kills(tmp_path, seed):
    kill_etl(tmp_path, seed=100 + seed, rows=100_000, kills=2)


HANGING = """
import time
from manyfit.spec import ETLSpec

class Hanging(ETLSpec):
    def row_prep(self, row, mode, object_dir):
        open(f"{row.id}.started", "w").close()
        time.sleep(600)
"""


@pytest.mark.soak
def test_a_row_that_hangs_can_be_interrupted(tmp_path):
    write_csv(tmp_path / "t.csv", 500)
    (tmp_path / "specs.py").write_text(HANGING)
    words = [
        "data",
        "etl",
        "specs.Hanging",
        "--train-main",
        "t.csv",
        "--src",
        ".",
        "--workers",
        "2",
        "--etl-dir",
        "etl",
    ]
    command = [sys.executable, "-m", "manyfit", *words]
    process = subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # shells ignore it in the background
    )  # fmt: skip
    deadline = time.monotonic() + 120
    while len(list(tmp_path.glob("*.started"))) < 2:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < deadline
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    err = process.communicate(timeout=60)[1]
    assert process.returncode == 130
    assert "Traceback" not in err


def test_object_files_with_the_same_names_do_not_collide(tmp_path):
    class Files(ETLSpec):
        def row_prep(self, row, mode, object_dir):
            return np.array([float(Path(object_dir + row["file"]).read_text())]), None

    lines = ["id,file"]
    for i in range(60):
        (tmp_path / "objects" / f"{i}").mkdir(parents=True)
        (tmp_path / "objects" / f"{i}" / "same.txt").write_text(str(i))
        lines.append(f"row{i},{i}/same.txt")
    (tmp_path / "p.csv").write_text("\n".join(lines))
    table = read_table("predict", str(tmp_path / "p.csv"), str(tmp_path / "objects"))
    found = run_etl(Files(), [table], tmp_path / "etl", EtlOptions(shards=3, workers=2))
    source = open_split(found.folder, "predict")
    values = source.gather(np.arange(60)).inputs[:, 0]
    assert [f"row{int(value)}" for value in values] == source.ids(np.arange(60))
    assert source.ids(np.arange(60)) == [f"row{i}" for i in range(60)]


def test_tables_and_files_may_be_remote(tmp_path):
    import fsspec

    class Remote(ETLSpec):
        def set_features(self):
            self.features, self.is_feature_download = ["file"], [True]

        def read_misc(self, misc_path):
            self.factor = float(Path(misc_path + "factor.txt").read_text())

        def row_prep(self, row, mode, object_dir):
            return np.array([float(Path(object_dir + row.file).read_text()) * self.factor]), 1

    files = fsspec.filesystem("memory")
    files.pipe("/bucket/t.csv", b"id,file\na,x/1.txt\nb,y/1.txt\n")
    files.pipe("/bucket/objects/x/1.txt", b"1")
    files.pipe("/bucket/objects/y/1.txt", b"2")
    (tmp_path / "factor.txt").write_text("10")
    misc = collect_misc([str(tmp_path / "factor.txt")], tmp_path / "misc")
    table = read_table("train", "memory://bucket/t.csv", "memory://bucket/objects")
    found = run_etl(Remote(), [table], tmp_path / "etl", EtlOptions(shards=1, workers=1), misc)
    source = open_split(found.folder, "train")
    got = dict(zip(source.ids(np.arange(2)), source.gather(np.arange(2)).inputs[:, 0].tolist(), strict=True))
    assert got == {"a": 10.0, "b": 20.0}


@pytest.mark.parametrize(
    ("text", "features", "message"),
    [
        ("id,valu,label\na,1,2\n", ["value"], "has no column 'value'; did you mean 'valu'"),
        ("id,value\na,1\na,2\n", [], "must be unique, but 1 are repeated, such as 'a'"),
        ("", [], "cannot be read as CSV|has no rows"),
        ("id,value\n", [], "has no rows"),
        ("id,value\na,1\n,2\n", [], "row 2 of .* has no ID"),
        ("id,a,a\n1,2,3\n", [], "two columns of .* have the same name"),
    ],
)
def test_mistakes_in_tables_are_named(tmp_path, text, features, message):
    class Mine(Numbers):
        def set_features(self):
            self.features = features

    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ManyfitError, match=message):
        run_etl(Mine(), [read_table("train", str(tmp_path / "t.csv"))], tmp_path / "etl")


def test_ids_are_kept_as_they_are_written(tmp_path):
    (tmp_path / "t.csv").write_bytes(
        '\ufeffid,value,label\r\n007,1,0\r\n7,2,1\r\n1.0,3,2\r\n"ä, b",4,0\r\n'.encode()
    )
    table = read_table("predict", str(tmp_path / "t.csv"))
    assert table.ids == ["007", "7", "1.0", "ä, b"]
    found = run_etl(Numbers(), [table], tmp_path / "etl", EtlOptions(shards=2, workers=1))
    source = open_split(found.folder, "predict")
    assert source.ids(np.arange(4)) == table.ids
    assert source.gather(np.arange(4)).inputs[:, 0].tolist() == [1, 2, 3, 4]


def test_a_changed_object_file_is_prepared_again(tmp_path):
    table = read_table("train", str(write_csv(tmp_path / "t.csv", 20)), str(tmp_path))
    first = run_etl(Numbers(), [table], tmp_path / "etl", EtlOptions(workers=1))
    assert run_etl(Numbers(), [table], tmp_path / "etl", EtlOptions(workers=1)).is_reused
    (tmp_path / "another.txt").write_text("1")
    again = run_etl(Numbers(), [table], tmp_path / "etl", EtlOptions(workers=1))
    assert not again.is_reused
    assert again.folder != first.folder


def test_rows_of_another_shape_are_named(tmp_path):
    class Odd(ETLSpec):
        def row_prep(self, row, mode, object_dir):
            return np.zeros(2 if row.id != "r7" else 3), 1

    table = read_table("train", str(write_csv(tmp_path / "t.csv", 20)))
    with pytest.raises(RunFailed, match=r"r7.* row_prep returned x \(3,\)"):
        run_etl(Odd(), [table], tmp_path / "etl", EtlOptions(shards=1, workers=1))


def test_row_prep_may_use_one_array_for_all_rows(tmp_path):
    class Buffered(ETLSpec):
        def __init__(self):
            self.buffer = np.zeros(2)

        def row_prep(self, row, mode, object_dir):
            self.buffer[:] = row["value"]
            return self.buffer, np.array(row["value"], ">f4")

    table = read_table("predict", str(write_csv(tmp_path / "t.csv", 9)))
    found = run_etl(Buffered(), [table], tmp_path / "etl", EtlOptions(shards=2, workers=1))
    batch = open_split(found.folder, "predict").gather(np.arange(9))
    assert batch.inputs[:, 1].tolist() == batch.target.tolist() == [i * 0.5 for i in range(9)]
    again = run_etl(Buffered(), [table], tmp_path / "etl", EtlOptions(shards=2, workers=1))
    assert again.is_reused


class Drawing(ETLSpec):
    """Draws from every generator."""

    def row_prep(self, row, mode, object_dir):
        return np.array([random.random(), np.random.random(), float(torch.rand(()))]), None


@pytest.mark.soak
def test_random_numbers_do_not_depend_on_the_number_of_workers(tmp_path):
    table = read_table("train", str(write_csv(tmp_path / "t.csv", 300)))
    found = []
    for seed, workers in ((1, 1), (1, 2), (2, 1)):
        options = EtlOptions(shards=2, workers=workers, seed=seed)
        folder = run_etl(Drawing(), [table], tmp_path / f"etl{workers}", options).folder
        found.append(open_split(folder, "train").gather(np.arange(300)).inputs)
    one, two, other = found
    assert np.array_equal(one, two)
    assert len(np.unique(one)) == one.size
    assert not np.isin(other, one).any()


LAZY = """
import sys
from pathlib import Path
from manyfit.data.etl.plan import EtlOptions
from manyfit.data.etl.run import run_etl
from manyfit.data.etl.tables import read_table
from manyfit.data.prepared import open_split
from manyfit.spec import ETLSpec

class Lazy(ETLSpec):
    def row_prep(self, row, mode, object_dir):
        import torch
        return torch.rand(3), None

place, workers = Path(sys.argv[1]), int(sys.argv[2])
assert "torch" not in sys.modules
tables = [read_table("train", str(place / "t.csv"))]
found = run_etl(Lazy(), tables, place / f"etl{workers}", EtlOptions(shards=2, workers=workers))
print(open_split(found.folder, "train").fingerprint())
"""


@pytest.mark.soak
def test_a_generator_that_row_prep_imports_is_seeded(tmp_path):
    write_csv(tmp_path / "t.csv", 300)
    (tmp_path / "lazy.py").write_text(LAZY)
    said = set()
    for workers in ("1", "2"):
        command = [sys.executable, str(tmp_path / "lazy.py"), str(tmp_path), workers]
        said.add(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert len(said) == 1


class Odd(ETLSpec):
    """What its rows become depends on the attribute `what`."""

    def __init__(self, what):
        self.what = what

    def set_features(self):
        if self.what == "features":
            raise KeyError("no features")

    def initialize_worker(self):
        if self.what == "initialize":
            raise OSError("no license")

    def row_prep(self, row, mode, object_dir):
        if self.what == "exit":
            sys.exit(0)
        if self.what == "shape" and row.id in ("r0", "r7"):
            return np.zeros(3), 1
        values = {
            "text": "abc",
            "same": {"a.b": 1.0, "a": {"b": 2.0}},
            "masked": np.ma.array([1], mask=[True]),
        }
        return values.get(self.what, np.zeros(2)), 1


@pytest.mark.parametrize(
    ("what", "message", "workers"),
    [
        ("features", "set_features failed: KeyError: 'no features'", 1),
        ("initialize", r"initialize_worker failed: OSError: no license\n  at .*test_etl.py", 1),
        ("initialize", r"initialize_worker failed: OSError: no license\n  at .*test_etl.py", 2),
        ("exit", "the row 'r.*' of train failed: SystemExit", 1),
        ("exit", "the row 'r.*' of train failed: SystemExit", 2),
        ("text", "rows must consist of numbers", 1),
        ("same", "two values of a row have the same name: x.a.b", 1),
        ("masked", "must not have masked values", 1),
    ],
)
def test_mistakes_of_a_spec_are_named(tmp_path, what, message, workers):
    table = read_table("train", str(write_csv(tmp_path / "t.csv", 100)))
    with pytest.raises(ManyfitError, match=message):
        run_etl(Odd(what), [table], tmp_path / "etl", EtlOptions(workers=workers))


@pytest.mark.parametrize(
    ("code", "path", "message"),
    [
        (
            "import numpy as np\nnp.no_such_function",
            "etl_code_a.Images",
            "AttributeError: .*no_such_function",
        ),
        ("import no_such_package", "etl_code_b.Images", "'no_such_package'\n  at .*etl_code_b.py:1"),
        ("", "no_such_module.Images", "there is no module 'no_such_module' in "),
        ("class Images: pass", "etl_code_c.Image", "has no class 'Image'; did you mean 'Images'"),
        ("class Images: pass", "etl_code_d.Images", "etl_code_d.Images is not an ETL spec"),
        ("", "Images", "expected: module.Class"),
    ],
)
def test_a_spec_that_cannot_be_loaded_is_explained(tmp_path, monkeypatch, code, path, message):
    monkeypatch.setattr(sys, "path", [*sys.path])
    if code:
        (tmp_path / f"{path.partition('.')[0]}.py").write_text(code)
    with pytest.raises(UsageError, match=message):
        load_spec(path, tmp_path)


def test_few_rows_of_another_shape_are_left_out(tmp_path):
    table = read_table("predict", str(write_csv(tmp_path / "t.csv", 20)))
    found = run_etl(Odd("shape"), [table], tmp_path / "etl", EtlOptions(workers=1, on_error="skip"))
    assert found.failed == {"predict": 2}
    with pytest.raises(ManyfitError, match="2 rows could not be prepared in an earlier call"):
        run_etl(Odd("shape"), [table], tmp_path / "etl", EtlOptions(workers=1))
    again = run_etl(Odd("shape"), [table], tmp_path / "etl", EtlOptions(workers=1, on_error="quarantine"))
    assert (again.folder / "quarantine.csv").read_text().count("\n") == 3


def test_a_missing_file_is_prepared_again(tmp_path):
    table = read_table("train", str(write_csv(tmp_path / "t.csv", 300)))
    found = run_etl(Numbers(), [table], tmp_path / "etl", EtlOptions(workers=1))
    before = open_split(found.folder, "train").fingerprint()
    next((found.folder / "train").glob("*.arrow")).unlink()
    again = run_etl(Numbers(), [table], tmp_path / "etl", EtlOptions(workers=1))
    assert not again.is_reused
    assert open_split(again.folder, "train").fingerprint() == before


@pytest.mark.parametrize(
    "options",
    [
        {"fraction": 0},
        {"fraction": "x"},
        {"shards": 2.5},
        {"workers": -1},
        {"on_error": "foo"},
        {"capacities": (1, 0)},
    ],
)
def test_impossible_options_are_named(tmp_path, options):
    table = read_table("train", str(write_csv(tmp_path / "t.csv", 10)))
    with pytest.raises(ManyfitError, match="must be"):
        run_etl(Numbers(), [table], tmp_path / "etl", EtlOptions(**options))
