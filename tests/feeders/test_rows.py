"""What becomes of each row of a feeder: `post_op`, several images, sequences, and what Python may ask for."""

from __future__ import annotations

import io
import random

import numpy as np
import pytest
import torch

from manyfit.core.errors import ComponentFailed, UsageError
from manyfit.data import Order, once
from manyfit.data.tfrecord import files, indexing, wire
from manyfit.data.tfrecord.features import column_of
from manyfit.data.tfrecord.writer import RecordWriter, write_records
from manyfit.feeders import (
    FixedLenFeature,
    ImageFeature,
    MemorySamplesFeeder,
    RawFeature,
    SequenceFeature,
    TFRecordExamplesFeeder,
    VarLenFeature,
)

image = pytest.importorskip("PIL.Image")


@pytest.fixture
def tf():
    return pytest.importorskip("tensorflow")


def indexed(folder, rows, name="train-0"):
    folder.mkdir(exist_ok=True)
    write_records(folder / name, rows)
    list(indexing.index_files(files.match_files(str(folder / "*"))))
    return folder / "*"


def picture(width=40, height=30, kind="PNG", seed=0, **more):
    small = np.random.default_rng(seed).integers(0, 255, (5, 6, 3), np.uint8)
    out = io.BytesIO()
    image.fromarray(small).resize((width, height), image.Resampling.BICUBIC).save(out, kind, **more)
    return out.getvalue()


def whole(feeder):
    (batch,) = once(feeder, max(1, len(feeder)))
    return batch


# -- images ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["RGB", "L"])
@pytest.mark.parametrize("subsampling", [0, 1, 2])
@pytest.mark.parametrize("channels", [0, 1, 3])
def test_a_jpeg_is_decoded_as_by_tensorflow_when_it_is_accurate(tf, mode, subsampling, channels):
    for seed, quality in enumerate((50, 90, 100)):
        out = io.BytesIO()
        colours = image.open(io.BytesIO(picture(131, 97, seed=seed))).convert(mode)
        colours.save(out, "JPEG", quality=quality, subsampling=subsampling)
        theirs = tf.io.decode_jpeg(out.getvalue(), channels, dct_method="INTEGER_ACCURATE").numpy()
        ours = ImageFeature(channels=channels, enforced_dtype="uint8").decode(out.getvalue())
        np.testing.assert_array_equal(ours, theirs)


def test_a_jpeg_is_the_same_without_the_faster_decoder(monkeypatch):
    from manyfit.data.tfrecord import images

    pytest.importorskip("simplejpeg")
    data = picture(131, 97, "JPEG", quality=90)
    fast = ImageFeature().decode(data)
    monkeypatch.setattr(images, "_simplejpeg", lambda: None)
    np.testing.assert_array_equal(ImageFeature().decode(data), fast)
    assert "not a readable image" in ImageFeature().decode(data[: len(data) // 2])


@pytest.mark.parametrize("channels", [1, 3])
def test_the_same_pixels_shrink_to_the_same_whatever_they_were_encoded_as(channels):
    jpeg = picture(640, 480, "JPEG", quality=90)
    small = ImageFeature(resize_height=40, resize_width=50, channels=channels)
    pixels = ImageFeature(channels=channels, enforced_dtype="uint8").decode(jpeg)
    out = io.BytesIO()
    image.fromarray(pixels[:, :, 0] if channels == 1 else pixels).save(out, "PNG")
    np.testing.assert_array_equal(small.decode(jpeg), small.decode(out.getvalue()))


def test_resizing_by_torch_and_by_pillow_differs_by_the_last_bit_only(monkeypatch):
    from manyfit.data.tfrecord import images

    data = picture(400, 320, "JPEG", quality=90)
    feature = ImageFeature(resize_height=224, resize_width=200, enforced_dtype="uint8")
    made = []
    for vectorised in (True, False):
        monkeypatch.setattr(images, "_is_vectorised", lambda answer=vectorised: answer)
        made.append(feature.decode(data).astype(int))
    assert np.abs(made[0] - made[1]).max() <= 1


@pytest.mark.parametrize("first", [False, True])
def test_several_images_in_a_row(tmp_path, first):
    shown = [[picture(seed=10 * row + i) for i in range(3)] for row in range(5)]
    place = indexed(tmp_path / "a", ({"views": views} for views in shown))
    one = ImageFeature(resize_height=8, resize_width=9, channels_first=first)
    several = ImageFeature(resize_height=8, resize_width=9, channels_first=first, count=3)
    found = whole(TFRecordExamplesFeeder(place, {"views": several})).inputs
    assert found.shape == ((5, 3, 3, 8, 9) if first else (5, 3, 8, 9, 3))
    for row, views in enumerate(shown):
        for i, view in enumerate(views):
            np.testing.assert_array_equal(found[row, i], one.decode(view))
    with pytest.raises(Exception, match=r"record 0.*has 3 images, but count requires at most 2"):
        whole(TFRecordExamplesFeeder(place, {"views": ImageFeature(8, 9, count=2, pad=True)}))


def test_fewer_images_are_an_error_or_zeros(tmp_path):
    place = indexed(tmp_path / "a", [{"views": [picture()] * n} for n in (2, 0, 1)])
    with pytest.raises(
        Exception, match=r"record 1.*has 0 images, but count requires 2 \(pad: true adds empty images\)"
    ):
        whole(TFRecordExamplesFeeder(place, {"views": ImageFeature(8, 9, count=2)}))
    found = whole(TFRecordExamplesFeeder(place, {"views": ImageFeature(8, 9, count=2, pad=True)})).inputs
    assert [bool(found[row, i].any()) for row in range(3) for i in range(2)] == [1, 1, 0, 0, 1, 0]


# -- post_op --------------------------------------------------------------------------------------


def noisy(features, labels):
    drawn = np.float32(random.random() + np.random.rand() + float(torch.rand(())))
    return {"x": features["x"] + drawn}, labels


def numbers(folder, count=12):
    return indexed(folder, ({"x": [float(i), 0.5], "label": i % 3} for i in range(count)))


def fed(place, **more):
    labels = {"label": FixedLenFeature([1], "int64")}
    return TFRecordExamplesFeeder(place, {"x": FixedLenFeature([2])}, labels, batch_size=5, **more)


def test_what_post_op_draws_is_a_function_of_seed_epoch_and_row(tmp_path):
    place = numbers(tmp_path / "a")

    def epochs(**more):
        made = [{}, {}]
        for step, batch in enumerate(fed(place, post_op=noisy, **more).batches(Order(5, seed=3, epochs=2))):
            for row, value in zip(batch.index.tolist(), batch.inputs, strict=True):
                made[step // 3][row] = value.tolist()
        return made

    state = random.getstate(), torch.get_rng_state()
    known = epochs()
    assert random.getstate() == state[0] and torch.equal(torch.get_rng_state(), state[1])
    assert (
        known == epochs(num_parallel_reads=3) == epochs(cache=str(tmp_path / "kept")) == epochs(shuffle=False)
    )
    assert all(known[0][row] != known[1][row] for row in range(12))
    later = list(fed(place, post_op=noisy).batches(Order(5, seed=3, epochs=2), start=4))
    for batch in later:
        assert all(v.tolist() == known[1][r] for r, v in zip(batch.index.tolist(), batch.inputs, strict=True))
    evaluated = [[b.inputs.tolist() for b in once(fed(place, post_op=noisy), 5)] for _ in range(2)]
    assert evaluated[0] == evaluated[1]


def test_post_op_may_change_shapes_and_labels_and_crop_images(tmp_path):
    rows = ({"image": picture(20 + i, 30), "tokens": [i] * i, "label": i % 3} for i in range(6))
    place = indexed(tmp_path / "a", rows)

    def crop(features, labels):
        return {"image": features["image"][:8, :8], "tokens": features["tokens"][:3]}, {
            "label": labels["label"] + 1
        }

    def brighter(pixels):
        return pixels + 1

    features = {"image": ImageFeature(post_op=brighter), "tokens": VarLenFeature("int64")}
    labels = {"label": FixedLenFeature([1], "int64")}
    found = whole(TFRecordExamplesFeeder(place, features, labels, batch_size=6, post_op=crop))
    assert found.inputs["image"].shape == (6, 8, 8, 3) and found.inputs["image"].min() >= 1
    assert found.inputs["tokens"].tolist() == [[i if k < i else 0 for k in range(3)] for i in range(6)]
    assert found.target.tolist() == [i % 3 + 1 for i in range(6)]


@pytest.mark.parametrize(
    ("post_op", "error", "says"),
    [
        (lambda features, labels: features, UsageError, "must return .features, labels."),
        (lambda features, labels: ({"y": 1}, labels), UsageError, "must return the features x, but.* y"),
        (lambda features, labels: (1 / 0, labels), ComponentFailed, "post_op failed on row 0: ZeroDivision"),
        (
            lambda features, labels: ({"x": features["x"][: int(features["x"][0]) % 2 + 1]}, labels),
            UsageError,
            "'x' with different shapes",
        ),
    ],
)
def test_a_post_op_that_is_wrong_is_told(tmp_path, post_op, error, says):
    with pytest.raises(error, match=says):
        whole(fed(numbers(tmp_path / "a"), post_op=post_op))


def test_a_post_op_that_does_nothing_changes_nothing(tmp_path):
    rows = [{"name": b"a\0" * (i + 1), "raw": np.full(2, i, ">f8").tobytes(), "n": i} for i in range(4)]
    place = indexed(tmp_path / "a", rows)
    features = {
        "name": FixedLenFeature([], "string"),
        "raw": RawFeature([2], "float64"),
        "n": FixedLenFeature([], "int64"),
    }
    plain, mapped = (
        whole(TFRecordExamplesFeeder(place, features, post_op=post_op)).inputs
        for post_op in (None, lambda row: dict(row))
    )
    for name in features:
        assert plain[name].dtype == mapped[name].dtype and plain[name].tolist() == mapped[name].tolist()


def test_a_post_op_may_work_in_place(tmp_path):
    def doubled(features, labels):
        features["x"] *= 2
        return features, labels

    def twice(x, y):
        x *= 2
        return x, y

    place = numbers(tmp_path / "a")
    x, y = np.arange(8, dtype=np.float32).reshape(4, 2), np.arange(4)
    memory = MemorySamplesFeeder(x, y, batch_size=2, post_op=twice)
    for feeder in (
        fed(place, post_op=doubled),
        fed(place, post_op=doubled, cache=str(tmp_path / "c")),
        memory,
    ):
        passes = [[batch.inputs.tolist() for batch in once(feeder, 5)] for _ in range(2)]
        assert passes[0] == passes[1]
    assert x[1].tolist() == [2, 3]


def test_post_op_over_memory():
    x, y = np.arange(8, dtype=np.float32).reshape(4, 2), np.arange(4)
    found = whole(MemorySamplesFeeder(x, y, post_op=lambda a, b: (a * 2, b + 1)))
    assert found.inputs.tolist() == (x * 2).tolist() and found.target.tolist() == [1, 2, 3, 4]
    named = MemorySamplesFeeder({"a": x, "b": y}, post_op=lambda row: {**row, "b": row["b"] * 3})
    assert whole(named).inputs["b"].tolist() == [0, 3, 6, 9]
    with pytest.raises(UsageError, match="must return the columns a, b"):
        whole(MemorySamplesFeeder({"a": x, "b": y}, post_op=lambda row: {"a": row["a"]}))


# -- sequences ------------------------------------------------------------------------------------


def sequence(tf, context, lists):
    def feature(values):
        if values and isinstance(values[0], bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=values))
        if values and isinstance(values[0], float):
            return tf.train.Feature(float_list=tf.train.FloatList(value=values))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=values))

    return tf.train.SequenceExample(
        context=tf.train.Features(feature={name: feature(values) for name, values in context.items()}),
        feature_lists=tf.train.FeatureLists(
            feature_list={
                name: tf.train.FeatureList(feature=list(map(feature, steps))) for name, steps in lists.items()
            }
        ),
    ).SerializeToString()


def test_sequences_are_read_as_by_tensorflow(tmp_path, tf):
    draw = np.random.default_rng(0)
    records = []
    for i in range(30):
        steps = int(draw.integers(0, 6))
        lists = {
            "frames": [draw.random(4).tolist() for _ in range(steps)],
            "words": [[b"w%d" % k] for k in range(steps)],
            "marks": [[int(v)] for v in draw.integers(-300, 300, steps)],
        }
        records.append(sequence(tf, {"label": [i % 4]}, lists))
    (tmp_path / "a").mkdir()
    with RecordWriter(tmp_path / "a" / "train-0") as file:
        for record in records:
            file.write(record)
    list(indexing.index_files(files.match_files(str(tmp_path / "a"))))
    features = {
        "frames": SequenceFeature([2, 2]),
        "words": SequenceFeature(dtype="string", pad="-"),
        "marks": SequenceFeature(dtype="int64", pad=-1, length=4),
    }
    feeder = TFRecordExamplesFeeder(
        tmp_path / "a", features, {"label": FixedLenFeature([1], "int64")}, batch_size=30
    )
    found = whole(feeder)
    spec = {
        "frames": tf.io.FixedLenSequenceFeature([2, 2], tf.float32),
        "words": tf.io.FixedLenSequenceFeature([], tf.string),
        "marks": tf.io.FixedLenSequenceFeature([], tf.int64),
    }
    for row, record in enumerate(records):
        context, lists = tf.io.parse_single_sequence_example(
            record, {"label": tf.io.FixedLenFeature([1], tf.int64)}, spec
        )
        steps = len(lists["frames"])
        assert found.target[row] == context["label"].numpy()[0]
        np.testing.assert_array_equal(found.inputs["frames"][row, :steps], lists["frames"].numpy())
        assert not found.inputs["frames"][row, steps:].any()
        assert found.inputs["words"][row].tolist() == lists["words"].numpy().tolist() + [b"-"] * (5 - steps)
        marks = lists["marks"].numpy().tolist()[:4]
        assert found.inputs["marks"][row].tolist() == marks + [-1] * (4 - len(marks))
    del features["words"]
    kept = TFRecordExamplesFeeder(tmp_path / "a", features, batch_size=30, cache=str(tmp_path / "kept"))
    again = whole(kept).inputs
    np.testing.assert_array_equal(again["frames"], found.inputs["frames"])
    np.testing.assert_array_equal(again["marks"], found.inputs["marks"])


@pytest.mark.parametrize(
    ("feature", "says"),
    [
        (SequenceFeature([3]), r"has 2 values in step 0, but the shape \[3\] needs 3"),
        (SequenceFeature([2], "int64"), "holds sequence of float, not sequence of int64"),
        (VarLenFeature(), "holds sequence of float, not float"),
    ],
)
def test_sequences_of_another_shape_or_kind_are_refused(tmp_path, tf, feature, says):
    (tmp_path / "a").mkdir()
    with RecordWriter(tmp_path / "a" / "train-0") as file:
        file.write(sequence(tf, {}, {"x": [[1.0, 2.0]]}))
    list(indexing.index_files(files.match_files(str(tmp_path / "a"))))
    with pytest.raises(Exception, match=says):
        whole(TFRecordExamplesFeeder(tmp_path / "a", {"x": feature}))


def test_damaged_lists_of_features_are_errors_and_never_hang(tf):
    record = sequence(tf, {"label": [1]}, {"x": [[1.0, 2.0], [3.0, 4.0]], "w": [[b"a"], [b"b"]]})
    draw = random.Random(0)
    right = 0
    for _ in range(3000):
        data = bytearray(record)
        for _ in range(draw.randrange(1, 4)):
            data[draw.randrange(len(data))] = draw.randrange(256)
        buffer = wire.Buffer.of([bytes(data)])
        try:
            wire.find_schema(buffer)
            spans = wire.find_sequences(buffer, ["x", "w"])
            column_of(SequenceFeature([2], allow_missing=True), buffer, spans["x"])
            column_of(SequenceFeature(dtype="string", allow_missing=True), buffer, spans["w"])
            right += 1
        except wire.Malformed:
            pass
    assert 0 < right < 3000


# -- the door from Python -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: VarLenFeature("int64", pad=0.5), "pad: 0.5 is not of type int64"),
        (lambda: VarLenFeature("int64", pad=True), "pad: True is not of type int64"),
        (lambda: VarLenFeature("int64", pad=1 << 70), "pad: .* is not of type int64"),
        (lambda: VarLenFeature("flot32"), "dtype must be 'float32', 'int64' or 'string', not 'flot32'"),
        (lambda: VarLenFeature(length=0), "length must be greater than 0, not 0"),
        (lambda: FixedLenFeature([2], "int32"), "dtype must be 'float32', 'int64' or 'string', not 'int32'"),
        (lambda: FixedLenFeature([-1]), "shape must be greater than or equal to 0"),
        (lambda: FixedLenFeature(3), "FixedLenFeature: shape must be .*, not 3"),
        (lambda: RawFeature([2], "complex"), "RawFeature: dtype must be 'bool', .*, not 'complex'"),
        (lambda: ImageFeature(channels=2), "channels must be 0, 1, 3 or 4, not 2"),
        (lambda: ImageFeature(decode_format="tiff"), "decode_format must be .*, not 'tiff'"),
        (lambda: ImageFeature(count=2), "with count, all images must have one size"),
        (lambda: fed("a", batch_size=0), None),
        (lambda: fed("a", max_examples=-1), "max_examples must be greater than 0, not -1; .* leave it out"),
        (lambda: fed("a", max_examples=-7), "max_examples must be greater than 0, not -7"),
        (lambda: fed("a", max_examples=2.5), "max_examples must be a valid integer, not 2.5"),
        (lambda: fed("a", num_parallel_reads=0), "num_parallel_reads must be greater than 0, not 0"),
        (lambda: fed("a", prefetch=-1), "prefetch must be greater than or equal to 0, not -1"),
        (lambda: fed("a", compression="bz2"), "compression must be 'gzip', .*, not 'bz2'"),
        (lambda: fed("a", shuffle="no"), "shuffle must be a valid boolean, not 'no'"),
        (lambda: fed(5), "file_patterns must be"),
        (lambda: TFRecordExamplesFeeder("a", {"x": "VarLenFeature"}), "features_map must be"),
        (lambda: MemorySamplesFeeder([1, 2], batch_size=0), "batch_size must be greater than 0, not 0"),
        (lambda: MemorySamplesFeeder([1, 2], max_examples=-2), "max_examples must be greater than 0, not -2"),
    ],
)
def test_what_a_config_would_refuse_python_refuses(make, says):
    with pytest.raises((UsageError, TypeError) if says is None else UsageError, match=says):
        make()


def test_numbers_of_numpy_and_paths_are_welcome(tmp_path):
    place = numbers(tmp_path / "a")
    feeder = TFRecordExamplesFeeder(
        [place], {"x": FixedLenFeature((np.int64(2),))}, max_examples=np.int64(4), batch_size=np.int32(2)
    )
    assert len(feeder) == 4 and [len(batch) for batch in once(feeder, 2)] == [2, 2]


def test_a_feature_that_no_record_has_is_refused_unless_that_is_right(tmp_path, caplog):
    place = numbers(tmp_path / "a")
    with pytest.raises(UsageError, match=r"no record has a feature 'lable'; did you mean 'label'\?"):
        len(TFRecordExamplesFeeder(place, {"lable": VarLenFeature("int64")}))
    missing = VarLenFeature("int64", allow_missing=True)
    assert whole(TFRecordExamplesFeeder(place, {"more": missing})).inputs.shape == (12, 0)
    filled = FixedLenFeature([1], default_value=2.0)
    assert (whole(TFRecordExamplesFeeder(place, {"more": filled})).inputs == 2).all()
    assert "no record has a feature 'more'" in caplog.text and "default_value" in caplog.text


def test_a_feeder_can_be_put_away_in_one_of_its_own_threads(tmp_path):
    """The garbage collector runs in whichever thread it likes, also in one that reads ahead."""
    import itertools
    import threading

    feeder = fed(numbers(tmp_path / "a", 4000), num_parallel_reads=2, prefetch=8)
    batches = feeder.batches(Order(5, seed=1))
    reader, calls = feeder.records.columns, itertools.count()
    ready, done, heard = threading.Event(), threading.Event(), []

    def columns(*given):
        if next(calls) == 1:
            ready.wait(10)
            try:
                batches.close()
            except RuntimeError as error:
                heard.append(error)
            done.set()
        return reader(*given)

    feeder.records.columns = columns
    next(batches)
    ready.set()
    assert done.wait(10)
    assert not heard


# -- lists from post_op, and what cannot be held --------------------------------------------------


def test_lists_that_post_op_returns_keep_their_types(tmp_path):
    rows = [
        {"t": ["a\0", "b"], "n": [1, 2], "s": "x\0"},
        {"t": ["c"], "n": [3], "s": "y"},
        {"t": None, "n": None, "s": ""},
    ]
    maps = {
        "t": VarLenFeature("string"),
        "n": VarLenFeature("int64"),
        "s": FixedLenFeature([1], "string"),
    }
    pattern = str(indexed(tmp_path / "d", rows))
    plain = whole(TFRecordExamplesFeeder(pattern, maps)).inputs
    listed = whole(
        TFRecordExamplesFeeder(pattern, maps, post_op=lambda f: {k: list(v) for k, v in f.items()})
    ).inputs
    for name, column in plain.items():
        assert listed[name].dtype == column.dtype and listed[name].tolist() == column.tolist()
    halved = TFRecordExamplesFeeder(
        pattern, {"n": maps["n"]}, post_op=lambda f: {"n": [x / 2 if x > 1 else x for x in f["n"]]}
    )
    assert whole(halved).inputs.dtype == np.float32


@pytest.mark.parametrize(
    ("operation", "dtype"),
    [
        (lambda n: n > 1, bool),
        (lambda n: n.astype(np.int32), np.int32),
        (lambda n: np.eye(5, dtype=np.float32)[n], np.float32),
    ],
)
def test_what_post_op_makes_of_a_list_has_one_type_in_every_batch(tmp_path, operation, dtype):
    rows = [{"n": [1, 2]}, {"n": [3]}, {"n": None}, {"n": None}]
    pattern = str(indexed(tmp_path / "d", rows))
    feeder = TFRecordExamplesFeeder(
        pattern, {"n": VarLenFeature("int64")}, post_op=lambda f: {"n": operation(f["n"])}, shuffle=False
    )
    for size in (1, 2, 3, 4):
        for batch in feeder.batches(Order(size, epochs=1)):
            assert batch.inputs.dtype == dtype


def test_post_op_makes_numbers_of_images_and_texts(tmp_path):
    rows = [{"i": picture(40, 30), "t": "a"}, {"i": picture(30, 40), "t": "b"}]
    pattern = str(indexed(tmp_path / "d", rows))
    maps = {"i": ImageFeature(), "t": FixedLenFeature([], "string")}

    def operation(features):
        return {"i": features["i"][:20, :20], "t": b"ab".index(features["t"])}

    found = whole(TFRecordExamplesFeeder(pattern, maps, post_op=operation)).inputs
    assert found["i"].dtype == np.float32 and found["i"].shape == (2, 20, 20, 3)
    assert found["t"].dtype == np.int64 and found["t"].tolist() == [0, 1]
    own = {"i": ImageFeature(post_op=lambda pixels: pixels[:20, :20])}
    assert whole(TFRecordExamplesFeeder(pattern, own)).inputs.dtype == np.float32


@pytest.mark.parametrize("given", [3, "text", None, [[1], [2, 3]]])
def test_post_op_must_return_a_list_where_it_is_given_one(tmp_path, given):
    pattern = str(indexed(tmp_path / "d", [{"n": [1, 2]}, {"n": [3]}]))
    feeder = TFRecordExamplesFeeder(pattern, {"n": VarLenFeature("int64")}, post_op=lambda f: {"n": given})
    with pytest.raises(UsageError, match="post_op"):
        whole(feeder)


@pytest.mark.parametrize(
    "make",
    [
        lambda: VarLenFeature("float32", pad=int("9" * 400)),
        lambda: VarLenFeature("float32", pad=1e39),
        lambda: VarLenFeature("string", pad="\ud800"),
        lambda: SequenceFeature([1], "int64", pad=1 << 63),
    ],
)
def test_padding_that_cannot_be_held(make):
    with pytest.raises(UsageError, match="pad"):
        make()


def test_the_largest_numbers_can_be_held():
    assert VarLenFeature("float32", pad=-3.4028235e38).pad == -3.4028235e38
    assert VarLenFeature("float32", pad=float("inf")) and VarLenFeature("int64", pad=-(1 << 63))


@pytest.mark.parametrize(
    ("dtype", "value"), [("int64", (1 << 63) + 5), ("float32", 1e39), ("string", "\ud800")]
)
def test_a_default_that_cannot_be_held(tmp_path, dtype, value):
    pattern = str(indexed(tmp_path / "d", [{"n": [1]}] * 2))
    with pytest.raises(UsageError, match="default_value"):
        whole(TFRecordExamplesFeeder(pattern, {"m": FixedLenFeature([1], dtype, default_value=value)}))


def test_a_file_without_records_has_no_batches(tmp_path):
    feeder = TFRecordExamplesFeeder(
        str(indexed(tmp_path / "d", [])), {"n": VarLenFeature("int64", allow_missing=True)}
    )
    assert (
        list(feeder.batches(Order(4, epochs=1))) == list(feeder.batches(Order(4, seed=1, epochs=None))) == []
    )


@pytest.mark.parametrize("tail", [b"!", b",", b""])
def test_a_damaged_gif_is_said_to_be_one(tail):
    from manyfit.data.tfrecord import images

    out = io.BytesIO()
    image.new("RGB", (5, 4)).save(out, "GIF")
    data = out.getvalue()
    try:
        assert images.pixels(data[:-1] + tail, "auto", 3, None).shape == (4, 5, 3)
    except images.Unreadable as error:
        assert "is not a readable image" in str(error)


def test_a_broken_sequence_is_named_by_its_record():
    def field(tag, data):
        return bytes([tag, len(data)]) + data

    def record(numbers):
        feature = field(0x1A, field(0x0A, numbers))
        entry = field(0x0A, b"x") + field(0x12, field(0x0A, feature))
        return field(0x12, field(0x0A, entry))

    buffer = wire.Buffer.of([record(b"\x01"), record(b"\x02"), record(b"\x81" * 11 + b"\x01")])
    with pytest.raises(wire.Malformed) as error:
        column_of(SequenceFeature([1], "int64"), buffer, wire.find_sequences(buffer, ["x"])["x"])
    assert error.value.row == 2


def test_a_name_that_is_not_utf8_is_named_by_its_record():
    text = b"\x0a\x03\x0a\x01\xff"
    records = [feature_bytes([(b"a", text)])] * 3 + [feature_bytes([(b"\xff", text)])] + [b""] * 4
    with pytest.raises(wire.Malformed, match="UTF-8") as error:
        wire.find_schema(wire.Buffer.of(records))
    assert error.value.row == 3


def test_a_feature_that_is_no_list_is_named():
    with pytest.raises(wire.Malformed, match="'size' is not a list"):
        wire.find_schema(wire.Buffer.of([feature_bytes([(b"size", b"\x18\x01")])]))


def test_memory_for_an_image_that_could_not_be_had_is_asked_for_again(monkeypatch):
    from manyfit.data.tfrecord import images

    if images._is_vectorised():
        pytest.skip("torch resizes here, and keeps no memory")
    pytest.importorskip("simplejpeg")
    data, wanted = picture(57, 43, "JPEG"), images.pixels(picture(57, 43, "JPEG"), "jpeg", 3, (8, 8))
    images._scratch.__dict__.clear()

    def fails(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(images.np, "empty", fails)
        with pytest.raises(MemoryError):
            images.pixels(data, "jpeg", 3, (8, 8))
    assert (images.pixels(data, "jpeg", 3, (8, 8)) == wanted).all()


@pytest.mark.soak
def test_a_large_jpeg_is_decoded_and_its_memory_is_not_kept():
    from manyfit.data.tfrecord import images

    out = io.BytesIO()
    image.new("RGB", (13_500, 13_500), (10, 200, 30)).save(out, "JPEG")
    assert images.pixels(out.getvalue(), "jpeg", 3, (16, 16)).shape == (16, 16, 3)
    kept = getattr(images._scratch, "kept", ((0, 0),))[0]
    assert kept[0] * kept[1] <= images.KEPT


def feature_bytes(entries, after_key=b""):
    whole_ = b""
    for name, value in entries:
        inner = b"\x0a" + bytes([len(name)]) + name + after_key + b"\x12" + bytes([len(value)]) + value
        whole_ += b"\x0a" + bytes([len(inner)]) + inner
    return b"\x0a" + bytes([len(whole_)]) + whole_


PACKED = b"\x1a\x03\x0a\x01\x05"
LOOSE = b"\x1a\x04\x08\x05\x08\x06"


@pytest.mark.parametrize("count", [1, 5, 6, 40])
@pytest.mark.parametrize(
    ("record", "kinds", "is_readable"),
    [
        (feature_bytes([(b"a", LOOSE)]), {"a": {"int64"}}, True),
        (feature_bytes([(b"a", PACKED)], after_key=b"\x18\x01"), {"a": {"int64"}}, True),
        (feature_bytes([(b"a", PACKED), (b"b", b"\x1a\x03\x0a\x01\x81")]), {"a": {"int64"}, "b": {"int64"}}, True),
        (feature_bytes([(b"\xff", PACKED), (b"a", PACKED)]), None, True),
        (b"\x0a", None, False),
    ],
    ids=["unpacked", "unknown field", "other broken", "name", "cut"],
)  # fmt: skip
def test_what_is_accepted_does_not_depend_on_how_many_records_are_read_together(
    record, kinds, is_readable, count
):
    buffer = wire.Buffer.of([record] * count)
    if kinds is None:
        with pytest.raises(wire.Malformed):
            wire.find_schema(buffer)
    else:
        assert wire.find_schema(buffer) == kinds
    if not is_readable:
        with pytest.raises(wire.Malformed):
            wire.spans(buffer, ["a"])
        return
    found = column_of(VarLenFeature("int64"), buffer, wire.spans(buffer, ["a"])["a"])
    assert len(found) == count and all(row.tolist()[0] == 5 for row in found)


@pytest.mark.parametrize("seed", [None, 5])
@pytest.mark.parametrize("most", [None, 31])
def test_how_rows_are_read_changes_nothing(tmp_path, seed, most):
    """Threads, reading ahead, kept columns and the step that one begins with."""
    texts = [[f"w{i}" * (60 if j == 3 else 1) + "\0" * (i % 2) for j in range(i % 6)] for i in range(37)]
    rows = [{"t": texts[i] or None, "i": picture(40 + i % 3, seed=i), "y": i} for i in range(37)]
    write_records(tmp_path / "train-0", rows[:20])
    write_records(tmp_path / "train-1", rows[20:])
    list(indexing.index_files(files.match_files(str(tmp_path / "train-*"))))
    maps = {"t": VarLenFeature("string"), "i": ImageFeature(resize_height=12, resize_width=9)}

    def noisy(features, labels):
        return {**features, "i": features["i"] + np.float32(random.random())}, labels

    def batches(start=0, only=(), **how):
        chosen = {name: maps[name] for name in only or maps}
        feeder = TFRecordExamplesFeeder(
            str(tmp_path / "train-*"), chosen, {"y": FixedLenFeature([], "int64")}, batch_size=8,
            max_examples=most, post_op=noisy, feed_as_dict=True, **how,
        )  # fmt: skip
        return list(feeder.batches(Order(8, seed=seed, epochs=2), start))

    wanted = batches()
    ways = [
        (0, batches(num_parallel_reads=2, num_parallel_maps=1, prefetch=0)),
        (3, batches(3, num_parallel_maps=3, prefetch=2)),
        (0, batches(only=["i"], cache=str(tmp_path / "kept"))),
        (6, batches(6, only=["i"], cache=str(tmp_path / "kept"))),
    ]
    for start, found in ways:
        for left, right in zip(wanted[start:], found, strict=True):
            assert left.index.tolist() == right.index.tolist() == right.target.tolist()
            for name, column in right.inputs.items():
                assert column.dtype == left.inputs[name].dtype
                assert column.tolist() == left.inputs[name].tolist()
    for batch in wanted:
        for text, row in zip(batch.inputs["t"].tolist(), batch.index.tolist(), strict=True):
            assert [each.decode() for each in text if each] == texts[row]
