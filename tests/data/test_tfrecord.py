"""TFRecord files: what is read is exactly what TensorFlow reads, or an error that says which record it is."""

from __future__ import annotations

import itertools
import os
import random
import subprocess
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from manyfit.core.errors import UsageError
from manyfit.data import Order, once
from manyfit.data.tfrecord import files, indexing, metadata, verification, wire
from manyfit.data.tfrecord.errors import DataChanged, NotIndexed, RecordError
from manyfit.data.tfrecord.features import column_of
from manyfit.data.tfrecord.frames import FOOTER, frame_record, mask_checksum
from manyfit.data.tfrecord.records import Records
from manyfit.data.tfrecord.writer import encode, write_records
from manyfit.feeders import (
    FixedLenFeature,
    ImageFeature,
    MemorySamplesFeeder,
    RawFeature,
    TFRecordExamplesFeeder,
    VarLenFeature,
)
from manyfit.testing import SourceContract

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

FEATURES = {"x": FixedLenFeature([3], "float32"), "words": VarLenFeature("int64")}
LABELS = {"label": FixedLenFeature([1], "int64")}


def rows(count: int, start: int = 0) -> list[dict[str, object]]:
    return [
        {
            "x": [float(i), float(i) / 2, -1.0],
            "label": i % 7,
            "words": list(range(i % 4)),
            "name": f"row-{i}",
        }
        for i in range(start, start + count)
    ]


def folder(
    path: Path, counts: tuple[int, ...] = (30, 17), prefix: str = "train", compression: str = ""
) -> Path:
    """A folder with some files, not yet indexed."""
    done = 0
    for i, count in enumerate(counts):
        write_records(path / f"{prefix}-{i:05d}-of-{len(counts):05d}", rows(count, done), compression)
        done += count
    return path


MUTATIONS = ("flip", "cut", "splice", "drop", "double", "swap", "length", "noise", "bomb")


def mutated(data: bytes, records: list[bytes], kind: str, draw: random.Random) -> bytes:
    """One thing that can happen to a file of records."""
    if kind == "flip":
        at = draw.randrange(len(data) * 8)
        out = bytearray(data)
        out[at // 8] ^= 1 << (at % 8)
        return bytes(out)
    if kind == "cut":
        return data[: draw.randrange(len(data))]
    if kind == "noise":
        begin = draw.randrange(len(data))
        size = min(draw.randrange(1, 40), len(data) - begin)
        return data[:begin] + draw.randbytes(size) + data[begin + size :]
    if kind == "length":  # a hostile length whose own checksum is right
        at = draw.randrange(len(records))
        head = draw.choice([0, 1, 7, 1 << 31, 1 << 40, (1 << 64) - 1]).to_bytes(8, "little")
        frames = [frame_record(record) for record in records]
        frames[at] = head + FOOTER.pack(mask_checksum(head)) + frames[at][12:]
        return b"".join(frames)
    frames = list(records)
    at, other = draw.randrange(len(frames)), draw.randrange(len(frames))
    if kind == "splice":
        frames.insert(at, draw.choice([frames[other], encode({"label": 1}), b""]))
    elif kind == "drop":
        del frames[at]
    elif kind == "double":
        frames[at] = frames[other]
    elif kind == "swap":
        frames[at], frames[other] = frames[other], frames[at]
    elif kind == "bomb":  # nested messages whose lengths lie, in a frame that is right
        depth = draw.randrange(1, 60)
        frames[at] = b"\x0a\xff\xff\xff\xff\x07" * depth + draw.randbytes(draw.randrange(20))
    return b"".join(frame_record(record) for record in frames)


@pytest.fixture
def tf():
    return pytest.importorskip("tensorflow")


def feeder(path, **more):
    given = {"features_map": FEATURES, "labels_map": LABELS, "auto_generate_meta": True, **more}
    return TFRecordExamplesFeeder(str(path / "train-*"), **given)


def indexed(path, **more):
    made = folder(path, **more)
    list(indexing.index_files(files.match_files(str(made / "*"))))
    return made


# -- the same as TensorFlow -----------------------------------------------------------------------

KEYS = ("a", "b", "label", "image/encoded", "ü")
INTS = st.integers(-(2**63), 2**63 - 1) | st.integers(-3, 300)
FLOATS = st.floats(width=32, allow_nan=False)
FEATURE = st.one_of(
    st.tuples(st.just("int64"), st.lists(INTS, max_size=6)),
    st.tuples(st.just("float32"), st.lists(FLOATS, max_size=6)),
    st.tuples(st.just("string"), st.lists(st.binary(max_size=200), max_size=4)),
    st.just((None, [])),
)
EXAMPLE = st.dictionaries(st.sampled_from(KEYS), FEATURE, max_size=4)


def serialised(tf, example):
    kinds = {
        "int64": lambda v: tf.train.Feature(int64_list=tf.train.Int64List(value=v)),
        "float32": lambda v: tf.train.Feature(float_list=tf.train.FloatList(value=v)),
        "string": lambda v: tf.train.Feature(bytes_list=tf.train.BytesList(value=v)),
        None: lambda v: tf.train.Feature(),
    }
    features = {name: kinds[kind](values) for name, (kind, values) in example.items()}
    return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()


def theirs(tf, records, name, feature):
    """What `tf.io.parse_example` says, or None if it refuses."""
    dtype = {"int64": tf.int64, "float32": tf.float32, "string": tf.string}[feature.dtype]
    if isinstance(feature, FixedLenFeature):
        spec = tf.io.FixedLenFeature(feature.shape, dtype, feature.default_value)
    else:
        spec = tf.io.RaggedFeature(dtype)
    try:
        found = tf.io.parse_example(tf.constant(records, tf.string), {name: spec})[name]
    except tf.errors.InvalidArgumentError:
        return None
    return [row.numpy() for row in found] if isinstance(feature, VarLenFeature) else found.numpy()


def ours(records, name, feature):
    try:
        buffer = wire.Buffer.of(records)
        return column_of(feature, buffer, wire.spans(buffer, [name])[name])
    except wire.Malformed:
        return None


def same(left, right, feature):
    if left is None or right is None:
        return left is None and right is None
    if isinstance(feature, VarLenFeature):
        return len(left) == len(right) and all(
            a.tolist() == b.tolist() for a, b in zip(left, right, strict=True)
        )
    return left.shape == right.shape and left.tolist() == right.tolist()


SPECS = st.one_of(
    st.builds(VarLenFeature, dtype=st.sampled_from(["int64", "float32", "string"])),
    st.builds(FixedLenFeature, shape=st.sampled_from([[], [1], [2], [2, 2], [0]]), dtype=st.just("int64"),
              default_value=st.sampled_from([None, 7])),
    st.builds(FixedLenFeature, shape=st.sampled_from([[], [1], [3]]), dtype=st.just("float32"),
              default_value=st.sampled_from([None, 0.5])),
    st.builds(FixedLenFeature, shape=st.sampled_from([[], [1]]), dtype=st.just("string"),
              default_value=st.sampled_from([None, "none"])),
)  # fmt: skip


@pytest.mark.soak
@given(st.lists(EXAMPLE, min_size=1, max_size=12), st.sampled_from(KEYS), SPECS)
@settings(deadline=None)
def test_every_example_is_read_as_tensorflow_reads_it(examples, name, feature):
    tf = pytest.importorskip("tensorflow")
    if (
        isinstance(feature, FixedLenFeature)
        and feature.default_value is not None
        and np.prod(feature.shape) != 1
    ):
        feature = FixedLenFeature(
            feature.shape, feature.dtype
        )  # which TensorFlow would not fill with one value
    records = [serialised(tf, example) for example in examples]
    assert same(ours(records, name, feature), theirs(tf, records, name, feature), feature)


TEXT = st.one_of(
    st.binary(max_size=3),
    st.integers(0, 300).map(lambda size: b"w" * size),
    st.sampled_from(
        [b"", b"\0", b"a\0", b"\n\n", b"\n\x01", b"x" * 31, b"x" * 32, b"x" * 33, b"x" * 127, b"x" * 128]
    ),
)


@given(
    st.lists(
        st.one_of(st.lists(TEXT, max_size=12), st.integers(0, 600).map(lambda count: [b"ab\n"] * count)),
        min_size=1,
        max_size=14,
    ),
    st.booleans(),
)
@settings(deadline=None)
def test_lists_of_texts_come_back_as_they_were_written(lists, has_other):
    records = [encode({"a": 1, "t": each or None, **({"z": [b"z"]} if has_other else {})}) for each in lists]
    found = ours(records, "t", VarLenFeature("string"))
    assert [row.tolist() for row in found] == lists
    assert all(type(text) is bytes for row in found for text in row)
    most = max(map(len, lists))
    padded = VarLenFeature("string").batch(found)
    assert padded.tolist() == [each + [b""] * (most - len(each)) for each in lists]


@given(st.lists(EXAMPLE, min_size=8, max_size=24))
@settings(deadline=None)
def test_records_walked_together_and_alone_say_the_same(examples):
    tf = pytest.importorskip("tensorflow")
    records = [serialised(tf, example) for example in examples]
    together = wire.spans(wire.Buffer.of(records), KEYS)
    kinds = {}
    for row, record in enumerate(records):
        alone = wire.spans(wire.Buffer.of([record]), KEYS)
        assert {name: each.kind[row] for name, each in together.items()} == {
            n: e.kind[0] for n, e in alone.items()
        }
        for name, held in wire.find_schema(wire.Buffer.of([record])).items():
            kinds.setdefault(name, set()).update(held)
    whole = wire.find_schema(wire.Buffer.of(records))
    assert whole == {name: held - {"nothing"} or {"nothing"} for name, held in kinds.items()}


@given(st.lists(EXAMPLE, min_size=1, max_size=9))
@settings(deadline=None)
def test_what_we_write_tensorflow_reads(examples):
    tf = pytest.importorskip("tensorflow")
    for example in examples:
        given_row = {
            name: np.array(values, np.float32) if kind == "float32"
            else np.array(values, np.int64) if kind == "int64" else values or None
            for name, (kind, values) in example.items()
        }  # fmt: skip
        found = tf.train.Example.FromString(encode(given_row)).features.feature
        assert set(found) == set(example)
        for name, (kind, values) in example.items():
            field = {
                "int64": "int64_list",
                "float32": "float_list",
                "string": "bytes_list",
                None: "int64_list",
            }[kind]
            assert list(getattr(found[name], field).value) == values


@pytest.mark.parametrize("compression", ["", "gzip", "zlib"])
def test_files_go_both_ways(tmp_path, tf, compression):
    records = [encode(row) for row in rows(25)]
    options = tf.io.TFRecordOptions({"": "", "gzip": "GZIP", "zlib": "ZLIB"}[compression])
    with tf.io.TFRecordWriter(str(tmp_path / "train-theirs"), options) as file:
        for record in records:
            file.write(record)
    write_records(tmp_path / "train-ours", rows(25), compression)
    back = tf.data.TFRecordDataset(str(tmp_path / "train-ours"), options.compression_type)
    assert [item.numpy() for item in back] == records
    source = feeder(tmp_path, compression=compression or "none")
    found = np.concatenate([batch.inputs["x"] for batch in once(source, 7)])
    assert found.tolist() == [row["x"] for row in rows(25)] * 2


def test_forms_that_nobody_writes_are_read_as_protobuf_says(tf):
    def entry(key, feature):
        inner = b"\x0a" + bytes([len(key)]) + key + b"\x12" + bytes([len(feature)]) + feature
        return b"\x0a" + bytes([len(inner)]) + inner

    unpacked = entry(b"i", b"\x1a\x04\x08\x05\x08\x06")
    halves = entry(b"i", b"\x1a\x03\x0a\x01\x05\x1a\x03\x0a\x01\x06")
    value_first = b"\x0a\x0a\x12\x05\x1a\x03\x0a\x01\x09\x0a\x01i"
    twice = entry(b"i", b"\x1a\x03\x0a\x01\x01") + entry(b"i", b"\x1a\x03\x0a\x01\x02")
    unknown = b"\x78\x05" + entry(b"i", b"\x1a\x03\x0a\x01\x03")
    for body in (unpacked, halves, value_first, twice, unknown):
        record = b"\x0a" + bytes([len(body)]) + body
        wanted = list(tf.train.Example.FromString(record).features.feature["i"].int64_list.value)
        for copies in (1, 9):
            found = ours([record] * copies, "i", VarLenFeature("int64"))
            assert [row.tolist() for row in found] == [wanted] * copies


# -- damage ---------------------------------------------------------------------------------------


def check_mutation(path, data, read, right):
    """Read a mutated file by the index of the original: the right data, or an error that names the record."""
    path.write_bytes(data)
    try:
        found = read()
    except RecordError as error:
        assert error.file == str(path)
        assert error.record is not None
    except DataChanged as error:
        assert str(path) in str(error)
        assert "record" in str(error)
    else:
        assert found == right


def by_feeder(path):
    """As a run reads it."""
    source = feeder(path.parent, prefetch=0, auto_generate_meta=False)
    return np.concatenate([batch.inputs["x"] for batch in once(source, 5)]).tolist()


def by_records(path, entry):
    """The same without the look at the folder, which is slow a million times."""
    for finding in verification.compare_file(str(path), entry, deep=False):
        raise DataChanged(str(finding))
    wanted = {"x": ("x", FEATURES["x"]), "label": ("label", LABELS["label"])}
    return Records({str(path): entry}).columns(np.arange(entry.records), wanted)["x"].tolist()


def mutations(tmp_path, count, seed, read):
    draw = random.Random(seed)
    path = tmp_path / "train-0"
    write_records(path, rows(12))
    records = [encode(row) for row in rows(12)]
    original = path.read_bytes()
    assert original == b"".join(map(frame_record, records))
    list(indexing.index_files([str(path)]))
    entry = metadata.load_index(str(tmp_path))["train-0"]
    right = [row["x"] for row in rows(12)]
    assert by_feeder(path) == by_records(path, entry) == right
    for i in range(count):
        data = mutated(original, records, MUTATIONS[i % len(MUTATIONS)], draw)
        check_mutation(
            path, data, (lambda: by_feeder(path)) if read is None else (lambda: read(path, entry)), right
        )


def test_a_mutated_file_is_an_error_with_its_record_or_right(tmp_path):
    tracemalloc.start()
    mutations(tmp_path, 300, seed=1, read=None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(2, 12))
def test_a_hundred_thousand_mutations_each(tmp_path, seed):
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    mutations(tmp_path, 100_000, seed, by_records)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


def test_mutations_without_an_index_are_found_by_checksums_alone(tmp_path):
    draw = random.Random(5)
    records = [encode(row) for row in rows(9)]
    original = b"".join(map(frame_record, records))
    path = tmp_path / "train-0"
    for i in range(600):
        kind = ("flip", "cut", "noise", "length", "bomb")[i % 5]
        data = mutated(original, records, kind, draw)
        path.write_bytes(data)
        try:
            metadata.examine_file(str(path))
        except RecordError as error:
            assert error.file == str(path)
            assert error.record is not None
        else:
            whole = (
                [len(original)]
                if kind == "noise"
                else np.cumsum([0, *(len(frame_record(r)) for r in records)]).tolist()
            )
            assert len(data) in whole  # nothing changed, or it was cut between two records


@pytest.mark.parametrize("compression", ["gzip", "zlib"])
def test_damaged_compressed_files_are_errors(tmp_path, compression):
    draw = random.Random(3)
    path = tmp_path / "train-0"
    write_records(path, rows(40), compression)
    original = path.read_bytes()
    list(indexing.index_files([str(path)]))
    right = np.concatenate([b.inputs["x"] for b in once(feeder(tmp_path), 8)]).tolist()
    for i in range(200):
        path.write_bytes(mutated(original, [], ("flip", "cut", "noise")[i % 3], draw))
        try:
            found = np.concatenate([b.inputs["x"] for b in once(feeder(tmp_path), 8)])
        except (RecordError, DataChanged) as error:
            assert str(path) in str(error)
        else:
            assert found.tolist() == right


def test_many_features_and_many_texts_are_no_hang(tmp_path):
    import time

    begin = time.monotonic()
    wide = [{f"feature {i} {j}": 1 for i in range(2000)} for j in range(8)]
    long = [{"texts": [""] * 50_000, "x": [1.0, 2.0, 3.0], "label": 1}] * 8
    write_records(tmp_path / "train-0", [*rows(8), *wide])
    entry = metadata.examine_file(str(tmp_path / "train-0"))
    assert len(entry.features) == 16_004
    write_records(tmp_path / "train-0", long)
    found = next(once(feeder(tmp_path, features_map={"texts": VarLenFeature("string")}), 8)).inputs
    assert found.shape == (8, 50_000)
    assert time.monotonic() - begin < 60


def test_any_number_of_files_needs_few_descriptors(tmp_path):
    import resource

    folder(tmp_path, (2,) * 80)
    source = feeder(tmp_path)
    len(source)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 200
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, hard))
    try:
        assert sum(len(batch) for batch in source.batches(Order(16, seed=1, epochs=1))) == 160
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_file_that_is_cut_while_it_is_read_is_an_error(tmp_path):
    made = indexed(tmp_path, counts=(3000,))
    source = feeder(made, prefetch=0)
    batches = source.batches(Order(8, seed=1))
    next(batches)
    path = made / "train-00000-of-00001"
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)
    with pytest.raises(RecordError, match="it was truncated"):
        list(itertools.islice(batches, 2000))


def test_indexing_the_same_folder_twice_at_once_loses_nothing(tmp_path):
    from concurrent.futures import ProcessPoolExecutor

    for name in ("train", "validation", "test"):
        folder(tmp_path, (20,), prefix=name)
    paths = [[str(path)] for path in sorted(tmp_path.iterdir())]
    with ProcessPoolExecutor(3) as pool:
        list(pool.map(index_these, paths * 2))
    assert len(metadata.load_index(str(tmp_path))) == 3


def index_these(paths):
    return len(list(indexing.index_files(paths)))


def test_forcing_is_harmless_and_paths_may_be_relative(tmp_path, monkeypatch):
    made = indexed(tmp_path / "a[1]")
    list(indexing.index_files(files.match_files(str(made)), force=True))
    monkeypatch.chdir(made)
    assert not list(verification.verify_files("*"))
    assert not list(verification.verify_files("./train-*", deep=True))
    Path("train-00000-of-00002").unlink()
    assert [finding.what for finding in verification.verify_files("train-*")] == ["deleted"]


def test_a_bomb_is_not_unpacked(tmp_path):
    import zlib

    path = tmp_path / "train-0"
    write_records(path, rows(40), "zlib")
    list(indexing.index_files([str(path)]))
    size = path.stat().st_size
    head = (1 << 27).to_bytes(8, "little")
    bomb = zlib.compress(head + FOOTER.pack(mask_checksum(head)) + bytes(1 << 27), 9)
    path.write_bytes(bomb[:size].ljust(size, b"\0"))
    tracemalloc.start()
    with pytest.raises((RecordError, DataChanged)):
        list(once(feeder(tmp_path), 8))
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


# -- the index ------------------------------------------------------------------------------------


def whats(path, deep):
    return {finding.what for finding in verification.verify_files(str(path / "*"), deep=deep)}


def test_whatever_happened_to_a_file_is_found_and_named(tmp_path):
    made = indexed(tmp_path)
    first, second = sorted(made.glob("train-*"))
    original = first.read_bytes()
    assert not whats(made, True)
    first.write_bytes(original[:-3])
    assert whats(made, False) == {"resized"}
    assert whats(made, True) == {"truncated"}
    first.write_bytes(original[:40] + bytes([original[40] ^ 1]) + original[41:])
    assert whats(made, False) == set()
    assert whats(made, True) == {"corrupt"}
    write_records(first, [*rows(29), {**rows(1)[0], "label": 6}])
    assert whats(made, True) == {"changed"}
    write_records(first, [{"x": [1.0], "other": 2}])
    assert whats(made, True) == {"schema changed"}
    write_records(first, rows(30), "gzip")
    assert whats(made, True) == {"wrongly compressed"}
    first.unlink()
    assert whats(made, False) == {"deleted"}
    first.write_bytes(original)
    write_records(made / "train-extra", rows(1))
    assert whats(made, False) == {"added"}
    with pytest.raises(DataChanged, match="added"):
        list(once(feeder(made, auto_generate_meta=False), 4))
    second.unlink()
    (made / "train-extra").unlink()
    with pytest.raises(DataChanged, match="deleted"):
        list(once(feeder(made), 4))


def test_indexing_refuses_what_has_changed_unless_forced(tmp_path):
    made = indexed(tmp_path)
    first = min(made.glob("train-*"))
    write_records(first, rows(31))
    paths = files.match_files(str(made / "*"))
    with pytest.raises(DataChanged, match="--force"):
        list(indexing.index_files(paths))
    assert [each.entry.records for each in indexing.index_files(paths, force=True)] == [31, 17]
    assert not whats(made, True)
    (made / metadata.FILE).write_text("{}")
    with pytest.raises(DataChanged, match="--force"):
        list(indexing.index_files(paths))
    list(indexing.index_files(paths, force=True))
    assert not any(each.is_new for each in indexing.index_files(paths))


def test_metadata_of_another_program_is_read(tmp_path):
    import hashlib
    import json

    made = folder(tmp_path)
    entries = {
        path.name: {
            "total_records": count,
            "file_size": path.stat().st_size,
            "md5_hash": hashlib.md5(path.read_bytes()).hexdigest(),
        }
        for path, count in zip(sorted(made.glob("train-*")), (30, 17), strict=True)
    }
    (made / metadata.FILE).write_text(json.dumps({"version": 1, "files": entries}))
    old = feeder(made, auto_generate_meta=False)
    before = old.fingerprint()
    assert len(old) == 47
    assert not whats(made, True)
    list(indexing.index_files(files.match_files(str(made / "*"))))
    assert feeder(made, auto_generate_meta=False).fingerprint() == before


def test_metadata_that_lies_is_refused_or_found(tmp_path):
    import json

    made = indexed(tmp_path)
    place = made / metadata.FILE
    whole = json.loads(place.read_text())
    name = min(whole["files"])
    for key, value in (
        ("sha256", "../../precious"),
        ("records", 1 << 60),
        ("records", -1),
        ("size", 7),
        ("compression", "rar"),
        ("offsets", whole["files"][name]["checksums"]),
        ("checksums", "AAAA"),
        ("features", 3),
    ):
        changed = json.loads(json.dumps(whole))
        changed["files"][name][key] = value
        place.write_text(json.dumps(changed))
        with pytest.raises(DataChanged, match="cannot be read"):
            metadata.load_index(str(made))
    changed = json.loads(json.dumps(whole))
    changed["files"][name]["features"] = {"other": "int64"}
    place.write_text(json.dumps(changed))
    assert whats(made, True) == {"wrongly indexed"}


def test_compression_that_was_said_wrongly(tmp_path):
    indexed(tmp_path)
    with pytest.raises(RecordError, match="should be compressed with gzip, but is uncompressed"):
        len(feeder(tmp_path, compression="gzip"))


def test_kept_columns_that_are_damaged_are_made_again(tmp_path, monkeypatch):
    monkeypatch.setenv("MANYFIT_CACHE", str(tmp_path / "cache"))
    made = folder(tmp_path / "data")

    def read():
        return [batch.inputs["x"].tolist() for batch in once(feeder(made, cache=True), 9)]

    right = read()
    for change in (
        lambda f: f.write_bytes(f.read_bytes()[:-4]),
        lambda f: f.write_bytes(f.read_bytes()[:-1] + b"?"),
    ):
        change(min((tmp_path / "cache").rglob("0.npy")))
        assert read() == right
    with pytest.raises(UsageError, match="is a file"):
        list(once(feeder(made, cache=str(made / "train-00000-of-00002")), 9))


def test_rows_are_named_by_a_feature(tmp_path):
    source = feeder(folder(tmp_path), id_feature="name")
    assert source.ids(np.array([0, 40, 3])) == ["row-0", "row-40", "row-3"]
    assert feeder(tmp_path).ids(np.array([0, 40])) == ["train-00000-of-00002:0", "train-00001-of-00002:10"]


def test_two_features_under_one_name(tmp_path):
    with pytest.raises(UsageError, match="'a/b' and 'a_b' would both be passed to the model as 'a_b'"):
        feeder(tmp_path, features_map={"a/b": VarLenFeature(), "a_b": VarLenFeature()})


def test_data_that_nobody_has_indexed_is_refused(tmp_path):
    made = folder(tmp_path)
    with pytest.raises(NotIndexed, match="manyfit data index"):
        len(feeder(made, auto_generate_meta=False))
    assert len(feeder(made)) == 47
    assert len(feeder(made, auto_generate_meta=False)) == 47


@given(st.binary(max_size=300) | st.text(max_size=200).map(str.encode))
@settings(deadline=None)
def test_metadata_that_is_damaged_is_one_error(data):
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        (Path(place) / metadata.FILE).write_bytes(data)
        try:
            metadata.load_index(place)
        except DataChanged as error:
            assert metadata.FILE in str(error)


def test_a_file_that_lacks_a_feature_is_refused_before_anything_is_read(tmp_path):
    write_records(tmp_path / "train-0", rows(3))
    write_records(tmp_path / "train-1", [{"x": [1.0, 2.0, 3.0], "label": 0.5}])
    with pytest.raises(RecordError, match="train-1: the feature 'label' holds float, not int64"):
        len(feeder(tmp_path))


# -- rows -----------------------------------------------------------------------------------------


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=4),
    st.integers(1, 50),
    st.integers(1, 3),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
    st.one_of(st.none(), st.integers(1, 60)),
    st.data(),
)
@settings(deadline=None)
def test_every_record_once_an_epoch_however_it_is_read(counts, size, reads, ahead, shuffle, drop, most, data):
    import tempfile

    total = min(sum(counts), most or sum(counts))
    if not total or (drop and size > total):
        return
    with tempfile.TemporaryDirectory() as place:
        made = folder(Path(place), tuple(counts))
        given_how = {"shuffle": shuffle, "drop_remainder": drop, "max_examples": most, "batch_size": size}
        source = feeder(made, num_parallel_reads=reads, prefetch=ahead, **given_how)
        order = Order(1, seed=11, epochs=2)
        steps = source.steps(order)
        assert steps == (total // size if drop else -(-total // size))
        whole = list(source.batches(order))
        assert len(whole) == 2 * steps
        for epoch in (whole[:steps], whole[steps:]):
            seen = np.concatenate([batch.index for batch in epoch])
            assert len(seen) == (steps * size if drop else total)
            assert len(set(seen.tolist())) == len(seen)
            assert shuffle or seen.tolist() == list(range(len(seen)))
            assert np.concatenate([batch.target for batch in epoch]).tolist() == [row % 7 for row in seen]
        start = data.draw(st.integers(0, 2 * steps))
        rest = list(feeder(made, num_parallel_reads=1, prefetch=0, **given_how).batches(order, start))
        assert [b.inputs["x"].tolist() for b in rest] == [b.inputs["x"].tolist() for b in whole[start:]]
        evaluated = np.concatenate([batch.index for batch in once(source, 3)])
        assert evaluated.tolist() == list(range(total))


def test_a_shuffle_is_the_permutation_of_the_order_anew_each_epoch(tmp_path):
    order = Order(7, seed=4, epochs=2)
    source = feeder(folder(tmp_path))
    walked = np.concatenate([batch.index for batch in source.batches(order)])
    first, second = walked[:47].tolist(), walked[47:].tolist()
    assert (first, second) == (order.epoch(47, 0).tolist(), order.epoch(47, 1).tolist())
    assert list(range(47)) != first != second
    other = np.concatenate([batch.index for batch in source.batches(Order(7, seed=5, epochs=1))])
    assert other.tolist() != first


def read_kept(place, cache):
    return [batch.inputs["x"].tolist() for batch in once(feeder(place, cache=str(cache)), 9)]


def test_columns_are_kept_once_by_several_processes_and_after_one_that_was_killed(tmp_path):
    from concurrent.futures import ProcessPoolExecutor

    made = folder(tmp_path / "data", (300,))
    list(indexing.index_files(files.match_files(str(made))))
    cache = tmp_path / "cache"
    dead = subprocess.Popen(["true"])
    dead.wait()
    (cache / f".new-{dead.pid}-left").mkdir(parents=True)
    (cache / f".new-{os.getpid()}-mine").mkdir()
    right = [batch.inputs["x"].tolist() for batch in once(feeder(made), 9)]
    with ProcessPoolExecutor(3) as pool:
        assert list(pool.map(read_kept, [made] * 6, [cache] * 6)) == [right] * 6
    kept = sorted(path.name for path in cache.iterdir())
    assert len(kept) == 2 and kept[0] == f".new-{os.getpid()}-mine"


def test_kept_columns_are_the_same_and_are_made_once(tmp_path, monkeypatch):
    monkeypatch.setenv("MANYFIT_CACHE", str(tmp_path / "cache"))
    made = folder(tmp_path / "data")
    features = {**FEATURES, "name": FixedLenFeature([], "string")}
    plain = list(feeder(made, features_map=features).batches(Order(8, seed=3, epochs=2)))
    source = feeder(made, features_map=features, cache=True)
    again = list(source.batches(Order(8, seed=3, epochs=2)))
    for left, right in zip(plain, again, strict=True):
        assert {k: v.tolist() for k, v in left.inputs.items()} == {
            k: v.tolist() for k, v in right.inputs.items()
        }
        assert left.target.tolist() == right.target.tolist()
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.npy")}
    list(feeder(made, features_map=features, cache=True).batches(Order(8, seed=3, epochs=1)))
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "cache").rglob("*.npy")} == before


class TestFeeder(SourceContract):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path):
        self.folder = folder(tmp_path, (4, 3))

    def make(self):
        return feeder(self.folder, features_map={"x": FEATURES["x"]})


class TestMemory(SourceContract):
    def make(self):
        return MemorySamplesFeeder(np.arange(14).reshape(7, 2), np.arange(7))


def test_ragged_rows_are_padded_cut_or_left(tmp_path):
    made = folder(tmp_path, (5,))

    def words(**how):
        feature = VarLenFeature("int64", **how)
        return next(once(feeder(made, features_map={"words": feature}), 5)).inputs

    assert words().tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 1, 2], [0, 0, 0]]
    assert words(pad=-1, length=2).tolist() == [[-1, -1], [0, -1], [0, 1], [0, 1], [-1, -1]]
    assert [row.tolist() for row in words(ragged=True)] == [[], [0], [0, 1], [0, 1, 2], []]


def test_images_are_decoded_resized_and_scaled(tmp_path):
    import io

    image = pytest.importorskip("PIL.Image")
    pixels = np.zeros((10, 20, 3), np.uint8)
    pixels[:, 10:] = 255

    def encoded(kind):
        out = io.BytesIO()
        image.fromarray(pixels).save(out, kind)
        return out.getvalue()

    write_records(
        tmp_path / "train-0", [{"image": encoded(kind), "label": 1} for kind in ("PNG", "JPEG", "PNG")]
    )

    def first(**how):
        features = {"image": ImageFeature(**how)}
        return next(once(feeder(tmp_path, features_map=features), 3)).inputs

    assert first(enforced_dtype="uint8")[0].tolist() == pixels.tolist()
    assert first().max() == 1.0
    assert first(resize_height=4, resize_width=6, channels=1).shape == (3, 4, 6, 1)
    assert first(resize_height=4, resize_width=6, channels_first=True).shape == (3, 3, 4, 6)
    small = first(resize_height=5, resize_width=10, standard_scaling=True)
    assert small.min() == -1.0
    assert small.dtype == np.float32
    with pytest.raises(RecordError, match="record 0: the feature 'image' is not a readable image"):
        first(decode_format="jpeg")


def test_raw_arrays(tmp_path):
    arrays = [np.arange(6, dtype=np.int16).reshape(2, 3) + i for i in range(8)]
    write_records(tmp_path / "train-0", [{"image": a.tobytes(), "label": 1} for a in arrays])
    found = next(once(feeder(tmp_path, features_map={"image": RawFeature([2, 3], "int16")}), 8)).inputs
    assert found.tolist() == [a.tolist() for a in arrays]
    with pytest.raises(RecordError, match="has 12 bytes"):
        next(once(feeder(tmp_path, features_map={"image": RawFeature([4], "int16")}), 8))


def test_files_in_a_store(tmp_path, monkeypatch):
    import fsspec

    monkeypatch.setenv("MANYFIT_CACHE", str(tmp_path / "cache"))
    store = fsspec.filesystem("memory")
    local = folder(tmp_path / "local")
    for path in local.glob("train-*"):
        store.pipe_file(f"/bucket/{path.name}", path.read_bytes())
    source = TFRecordExamplesFeeder("memory://bucket/train-*", FEATURES, LABELS, auto_generate_meta=True)
    assert len(source) == 47
    assert store.isfile("/bucket/_tfrecord_metadata.json")
    here = np.concatenate([batch.inputs["x"] for batch in once(feeder(local), 6)])
    assert np.concatenate([batch.inputs["x"] for batch in once(source, 6)]).tolist() == here.tolist()
    assert source.fingerprint() == feeder(local).fingerprint()
    assert not list(verification.verify_files("memory://bucket/*", deep=True))
    with pytest.raises(UsageError, match="no file matches memory://bucket/nothing"):
        len(TFRecordExamplesFeeder("memory://bucket/nothing-*", FEATURES, LABELS))


def test_a_writer_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(UsageError, match="cannot be written"):
        write_records(tmp_path / "train-0", [{"x": 1}, {"x": object()}])
    assert list(tmp_path.iterdir()) == []


def test_memory_takes_arrays_tables_dicts_and_lists():
    pandas = pytest.importorskip("pandas")
    x = np.arange(12, dtype=np.float32).reshape(6, 2)
    y = np.arange(6)

    def first(*given_data, **how):
        return next(once(MemorySamplesFeeder(*given_data, **how), 6))

    assert first(x, y).inputs.tolist() == x.tolist()
    assert first(x.tolist(), y.tolist()).target.tolist() == y.tolist()
    table = pandas.DataFrame({"a": x[:, 0], "b c": x[:, 1]})
    assert sorted(first(table, pandas.Series(y)).inputs) == ["a", "b_c"]
    assert first({"a": x[:, 0]}, y[:, None]).target.tolist() == y.tolist()
    assert first([{"a": 1.0}, {"a": 2.0}], [0, 1]).inputs["a"].tolist() == [1.0, 2.0]
    assert sorted(first(x, y, feed_as_dict=True).inputs) == ["x0", "x1"]
    assert len(MemorySamplesFeeder(x, y, max_examples=4)) == 4
    assert MemorySamplesFeeder(x, y, batch_size=4, drop_remainder=True).steps(Order(1, seed=1)) == 1
    with pytest.raises(UsageError, match="x is not an array"):
        MemorySamplesFeeder([[1], [1, 2]])
