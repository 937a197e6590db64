"""What must hold for every config, not for three."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manyfit import ConfigError, load_config
from manyfit.config import patch
from manyfit.config.identity import hash_data
from manyfit.config.tree.layers import INHERIT, inherit, lay
from manyfit.config.tree.nodes import Map, from_plain, leaves, plain
from manyfit.config.tree.overrides import apply, collect
from manyfit.config.tree.reader import dump, parse_yaml
from manyfit.config.tree.references import Resolver, escape

relaxed = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    [
        "1e-3",
        "on",
        "null",
        "<<",
        "~",
        "- a",
        "a: b",
        "${a}",
        "*a",
        "&a",
        "!x",
        "\t",
        "\x85",
        "a\n\nb ",
        "${",
        "\\${x}",
        "#",
        "'",
        '"',
    ]
)
key = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
name = st.sampled_from(["a", "b", "c", "d", "e"])
scalar = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | text
value = st.recursive(
    scalar, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(key, inner, max_size=3), max_leaves=10
)
mapping = st.dictionaries(key, value, max_size=4)
named = st.recursive(st.integers(), lambda inner: st.dictionaries(name, inner, max_size=3), max_leaves=8)
tree = st.dictionaries(name, named, max_size=4)

configs = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**40),
        "data": st.fixed_dictionaries({"class": st.just("digits")}, optional={
            "batch_size": st.integers(1, 512), "validation": st.floats(0.01, 0.4), "split_seed": st.integers()}),
        "model": st.fixed_dictionaries({"class": st.just("torch.nn.Linear"), "in_features": st.integers(1, 64),
                                        "out_features": st.integers(1, 64)}, optional={"bias": st.booleans()}),
        "train": st.fixed_dictionaries(
            {"epochs": st.integers(1, 99), "loss": st.sampled_from(["cross_entropy", "mse", {"class": "huber", "delta": 0.5}]),
             "optimizer": st.fixed_dictionaries({"class": st.sampled_from(["adamw", "torch.optim.AdamW"])}, optional={
                 "lr": st.floats(1e-9, 1), "betas": st.lists(st.floats(0, 0.999), min_size=2, max_size=2),
                 "amsgrad": st.booleans()})},
            optional={"metrics": st.lists(st.sampled_from(["accuracy", "mse"]), unique=True), "threads": st.integers(1, 4),
                      "scheduler": st.sampled_from(["cosine", {"class": "step", "step_size": 3}])}),
    },
    optional={"project_name": text, "export": st.fixed_dictionaries({"metric": st.sampled_from(["val_loss", "lr"])})},
)  # fmt: skip


def load(config, overrides=()):
    return load_config(escaped(config), overrides, project=Path(__file__).parent)


def escaped(found):
    if isinstance(found, dict):
        return {k: escaped(v) for k, v in found.items()}
    if isinstance(found, list):
        return [escaped(v) for v in found]
    return escape(found) if isinstance(found, str) else found


def shuffled(found, random):
    if not isinstance(found, dict):
        return found
    keys = list(found)
    random.shuffle(keys)
    return {k: shuffled(found[k], random) for k in keys}


def paths(found, path=()):
    if not isinstance(found, dict):
        yield path
        return
    for k, v in found.items():
        yield from paths(v, (*path, k))


@given(mapping)
def test_dump_and_read_are_inverse(found):
    assert plain(parse_yaml(dump(found), "f")) == found


@relaxed
@given(configs)
def test_dump_and_load_are_inverse(config):
    loaded = load(config)
    again = plain(parse_yaml(loaded.dump(), "f"))
    assert again == escaped(config)
    assert load_config(again, project=loaded.project) == loaded
    assert load_config(again, project=loaded.project).fingerprint == loaded.fingerprint


changes = st.dictionaries(
    st.sampled_from(["seed", "train.epochs", "train.optimizer.lr", "data.batch_size", "model.bias", "train.threads",
                     "export.metric", "train.loss", "train.metrics", "train.scheduler", "train.every.validate"]),
    st.sampled_from([1, 3, 0.5, True, "mse", "cross_entropy", "val_loss", "lr", ["accuracy"], "cosine", "2ep", None]),
    max_size=3,
)  # fmt: skip


@relaxed
@given(configs, st.lists(changes, min_size=1, max_size=4))
def test_a_patch_finds_what_loading_anew_finds(config, patches):
    """A patch remembers what was checked before it, right or wrong; nothing of that may be seen."""
    base = load(config)
    for changed in patches:
        overrides = [f"{key}={dump(found).strip().removesuffix('...')}" for key, found in changed.items()]
        assert outcome(patch, base, overrides) == outcome(load, config, overrides)


def outcome(make, *arguments):
    try:
        found = make(*arguments)
    except ConfigError as error:
        return [(p.path, p.message, p.expected, p.received) for p in error.problems]
    learned = (found.kinds, found.classes, found.defaults, found.derived)
    return plain(found.tree), found.run, *map(dict, learned), found.to_resolved_yaml(), found.fingerprint


@given(tree, tree)
def test_the_stronger_layer_wins(weak, strong):
    laid = plain(lay(from_plain(weak), from_plain(strong), []))
    for path in paths(strong):
        assert lookup(laid, path) == lookup(strong, path)
    for path in paths(weak):
        if (
            not any(path[:n] in set(paths(strong)) for n in range(len(path) + 1))
            and lookup(strong, path) is None
        ):
            assert lookup(laid, path) == lookup(weak, path)


@relaxed
@given(
    st.permutations(["extended", "file", "override"]),
    st.sets(st.sampled_from(["extended", "file", "override"])),
)
def test_precedence(tmp_path_factory, numbers, present):
    """Whatever the values are, the strongest layer that has one decides."""
    folder = tmp_path_factory.mktemp("precedence")
    given_by = {layer: 10 + i for i, layer in enumerate(numbers)}
    base = {"data": "digits", "model": {"class": "torch.nn.Linear", "in_features": 1, "out_features": 1},
            "train": {"epochs": 1, "loss": "mse", "optimizer": {"class": "sgd"}}}  # fmt: skip

    def layer(name):
        tree = copy.deepcopy(base) if name == "extended" else {"extend": "base.yaml"}
        if name in present:
            tree["data"] = {"class": "digits", "batch_size": given_by[name]}
        return dump(tree)

    (folder / "base.yaml").write_text(layer("extended"))
    (folder / "file.yaml").write_text(layer("file"))
    overrides = [f"data.batch_size={given_by['override']}"] if "override" in present else []
    strongest = next((name for name in ("override", "file", "extended") if name in present), None)
    found = load_config(folder / "file.yaml", overrides)
    if strongest is None:
        assert found.snapshot.values["data.batch_size"] == 64, "the default in the signature"
    else:
        assert found.data.batch_size == given_by[strongest]


@given(tree, st.integers(), st.data())
def test_overrides_reach_references(found, number, data):
    targets = list(paths(found))
    if not targets or targets == [()]:
        return
    target = data.draw(st.sampled_from(targets))
    dotted = ".".join(target)
    root = from_plain({**found, "first": f"${{{dotted}}}", "second": ["${first}"]})
    changed = apply(root, collect([f"{dotted}={number}"], [])[0], [])
    resolver = Resolver(changed, {})
    result = plain(resolver.resolve())
    assert not resolver.problems
    assert result["first"] == number
    assert result["second"] == [number]


@relaxed
@given(configs, st.randoms(use_true_random=False))
def test_fingerprints_ignore_order(config, random):
    assert load(shuffled(config, random)).fingerprint == load(config).fingerprint


CHANGES = {
    "seed": st.integers(0, 2**40),
    "data.batch_size": st.integers(1, 512),
    "data.validation": st.floats(0.01, 0.4),
    "model.class": st.sampled_from(["torch.nn.Linear", "torch.nn.LazyLinear"]),
    "model.out_features": st.integers(1, 64),
    "model.bias": st.booleans(),
    "train.epochs": st.integers(1, 99),
    "train.loss": st.sampled_from(["cross_entropy", "mse", "huber"]),
    "train.optimizer.class": st.sampled_from(["adamw", "adam"]),
    "train.optimizer.lr": st.floats(1e-9, 1),
    "train.optimizer.betas": st.lists(st.floats(0, 0.999), min_size=2, max_size=2),
    "train.optimizer.amsgrad": st.booleans(),
    "train.scheduler": st.sampled_from(["cosine", "linear", "constant"]),
    "train.threads": st.integers(1, 4),
    "train.device": st.sampled_from(["auto", "cpu"]),
    "train.metrics": st.lists(st.sampled_from(["accuracy", "mse"]), unique=True),
    "export.metric": st.sampled_from(["val_loss", "lr"]),
    "project_name": text,
}
NEVER = {"train.threads", "train.device", "train.metrics", "export.metric", "project_name"}


@relaxed
@given(configs, st.sampled_from(sorted(CHANGES)), st.data())
def test_fingerprints_change_with_every_identity_field_and_with_no_other(config, field, data):
    config = copy.deepcopy(config)
    config["model"] = {"class": "torch.nn.Linear", "in_features": 4, **config["model"]}
    before, after = (with_value(config, field, data.draw(CHANGES[field])) for _ in range(2))
    if lookup(before, tuple(field.split("."))) == lookup(after, tuple(field.split("."))):
        return
    if "LazyLinear" in str(before) + str(after):
        for tree in (before, after):
            if tree["model"]["class"] == "torch.nn.LazyLinear":
                tree["model"].pop("in_features", None)
    left, right = load(before), load(after)
    horizon = field == "train.epochs" and config["train"].get("scheduler") == "cosine"
    changes = field not in NEVER | {"train.epochs"} or horizon
    assert (left.fingerprint != right.fingerprint) is changes
    kinds = {str(difference.kind) for difference in left.diff(right)}
    assert ("identity" in kinds) is changes
    assert kinds


def with_value(config, field, value):
    config = copy.deepcopy(config)
    place = config
    *parents, last = field.split(".")
    for parent in parents:
        place = place.setdefault(parent, {})
    place[last] = value
    return config


@given(mapping)
def test_digests_ignore_the_spelling_of_numbers(found):
    floats = {k: float(v) if type(v) is int and abs(v) < 2**53 else v for k, v in found.items()}
    assert hash_data(found) == hash_data(floats)


@given(st.text() | st.text("{}[]:,&*!|>'\"%@`#-?\n\t a1${}", max_size=60))
def test_no_text_makes_anything_but_a_clean_error(content):
    try:
        node = parse_yaml(content, "f")
    except ConfigError as error:
        assert all(problem.origin.file == "f" and problem.origin.line >= 1 for problem in error.problems)
    else:
        assert list(leaves(node))
        if isinstance(node, Map):
            Resolver(node, {}).resolve()


@relaxed
@given(
    st.binary(max_size=200)
    | st.text("{}[]:,&*!|>'\"#-?\n a1${}_.classtrainmodel", max_size=120).map(str.encode)
)
def test_no_file_makes_anything_but_a_clean_error(tmp_path, content):
    (tmp_path / "f.yaml").write_bytes(content)
    with pytest.raises(ConfigError):
        load_config(tmp_path / "f.yaml")


@relaxed
@given(
    configs,
    st.lists(
        st.tuples(st.sampled_from(["", "+", "~"]), st.text("abtrinepochs.[]01=~+", max_size=16), text),
        max_size=3,
    ),
)
def test_no_override_makes_anything_but_a_clean_error(config, words):
    overrides = [f"{sign}{left}={right}" if sign != "~" else f"~{left}" for sign, left, right in words]
    try:
        load(config, overrides)
    except ConfigError as error:
        assert error.problems


words = st.sampled_from(["a", "b", "c", "d", "a.b", "b[0]", ".c", "..a", "nope", ""])
references = st.recursive(
    words,
    lambda inner: (
        st.builds("${{{}}}".format, inner)
        | st.builds(
            "${{{}:{}}}".format, st.sampled_from(["oc.env", "oc.select", "oc.decode", "secret", "x"]), inner
        )
        | st.builds("{}-{}".format, inner, inner)
    ),
    max_leaves=4,
)
linked = st.recursive(
    references | st.integers(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(name, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(name, linked, max_size=5))
def test_references_end_in_values_or_in_problems(found):
    resolver = Resolver(from_plain(found), {"a": "1"})
    resolver.resolve()
    assert all(problem.message for problem in resolver.problems)


heirs = st.recursive(
    st.integers(),
    lambda inner: st.dictionaries(
        name | st.just(INHERIT), inner | st.sampled_from(["a", "a.b", "b", "c.d"]), max_size=3
    ),
    max_leaves=10,
)


@given(st.dictionaries(name, heirs, max_size=5))
def test_inheritance_ends(found):
    assert isinstance(inherit(from_plain(found), []), Map)


@relaxed
@given(configs, value, st.data())
def test_no_value_anywhere_makes_anything_but_a_clean_error(config, odd, data):
    path = data.draw(st.sampled_from([path for path in paths(config) if "class" not in path]))
    changed = copy.deepcopy(config)
    lookup(changed, path[:-1])[path[-1]] = odd
    try:
        load_config(changed, project=Path(__file__).parent)
    except ConfigError as error:
        assert error.problems


def lookup(found, path):
    for step in path:
        if not isinstance(found, dict) or step not in found:
            return None
        found = found[step]
    return found
