"""Fingerprints and differences: identity, budget, neither."""

import pickle

import pytest

from manyfit import Kind, load_config


def load(project, overrides=(), **changes):
    return load_config(project.changed(**changes), overrides, project=project.root)


def test_a_full_digest(project):
    assert len(load(project).fingerprint) == 64
    assert int(load(project).fingerprint, 16)


def test_spelling_and_order_do_not_matter(project):
    project.write(
        "runs/b/config.yaml",
        """
        train: {optimizer: {lr: 0.0100, class: torch.optim.AdamW}, metrics: [accuracy], loss: {class: cross_entropy}, epochs: 2}
        model: {hidden: 8, class: models.MLP}
        data:
          batch_size: 16
          class: points.Blobs
        seed: 3
        project_name: test
        """,
    )
    assert load_config("runs/b").fingerprint == load_config("runs/a").fingerprint


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({"seed": 4}, False), ({"model__hidden": 9}, False), ({"train__optimizer": {"class": "adamw", "lr": 0.02}}, False),
        ({"train__optimizer": {"class": "adam", "lr": 0.01}}, False), ({"train__loss": "mse"}, False), ({"data__rows": 32}, False),
        ({"train__epochs": 9}, True), ({"project_name": "other"}, True), ({"train__metrics": []}, True),
        ({"train__threads": 1}, True), ({"export": {"metric": "val_accuracy", "mode": "max"}}, True), ({"train__device": "cpu"}, True),
    ],
)  # fmt: skip
def test_what_belongs_to_it(project, changes, same):
    assert (load(project, **changes).fingerprint == load(project).fingerprint) is same


def test_a_library_default_does_not_belong_to_it_but_an_explicit_value_does(project):
    explicit = load(project, ["train.optimizer.eps=1e-8"])
    assert explicit.fingerprint != load(project).fingerprint
    assert explicit.diff(load(project)) == [], (
        "the effective values are the same, so nothing differs in effect"
    )


def test_the_seed_counts_even_if_nobody_gave_it(project):
    tree = project.changed()
    del tree["seed"]
    zero = load_config(tree, project=project.root)
    assert zero.fingerprint != load(project).fingerprint
    assert load(project, seed=0).fingerprint == zero.fingerprint


def test_the_horizon_of_a_schedule_belongs_to_it(project):
    cosine = {"train__scheduler": "cosine"}
    assert load(project, **cosine).fingerprint != load(project, train__epochs=3, **cosine).fingerprint
    fixed = {"train__scheduler": {"class": "cosine", "T_max": 5}}
    assert load(project, **fixed).fingerprint == load(project, train__epochs=3, **fixed).fingerprint
    assert load(project, **cosine).run.train.horizon == 2


def test_a_horizon_stays_frozen(project):
    first = load(project, train__scheduler="cosine")
    frozen = {"train.horizon": first.run.train.horizon}
    longer = load_config(
        project.changed(train__scheduler="cosine", train__epochs=9), project=project.root, frozen=frozen
    )
    assert longer.run.train.horizon == 2
    assert longer.fingerprint == first.fingerprint


def test_diff_says_which_kind_each_difference_is(project):
    other = load(project, model__hidden=9, train__epochs=5, project_name="x")
    found = {d.path: (d.kind, d.before, d.after) for d in load(project).diff(other)}
    assert found == {
        "model.hidden": (Kind.IDENTITY, 8, 9),
        "train.epochs": (Kind.BUDGET, 2, 5),
        "project_name": (Kind.NEUTRAL, "test", "x"),
    }


def test_diff_on_the_command_line(project, cli):
    project.config(project.changed(model__hidden=9, train__epochs=5), run="b")
    answer = cli("config", "diff", "runs/a", "runs/b")
    assert answer.code == 0
    assert [line.split() for line in answer.out.splitlines()] == [
        ["model.hidden", "8", "→", "9", "identity"],
        ["train.epochs", "2", "→", "5", "budget"],
    ]
    assert cli("config", "diff", "runs/a", "runs/a").out == "no difference\n"


def test_parameters_can_declare_themselves_neutral(project):
    tree = {"class": "models.Rich"}
    plain = load(project, model=tree)
    assert load(project, model={**tree, "token": "abc"}).fingerprint == plain.fingerprint
    assert load(project, model={**tree, "flag": True}).fingerprint != plain.fingerprint


def test_the_resolved_file_is_a_config_again(project):
    config = load(project, train__scheduler="cosine")
    file = project.write("runs/b/config.resolved.yaml", config.to_resolved_yaml())
    again = load_config(file)
    assert again == config
    assert again.fingerprint == config.fingerprint


def test_true_is_not_one(project):
    left, right = (load(project, model={"class": "models.Rich", "free": value}) for value in (True, 1))
    assert left.fingerprint != right.fingerprint
    assert [d.path for d in left.diff(right)] == ["model.free"]


def test_a_list_of_things_that_are_neither(project):
    config = load(project, model={"class": "models.Rich", "free": [{"class": "models.Head", "width": 1}]})
    assert len(config.fingerprint) == 64


def test_a_patch_is_the_same_as_an_override(project):
    from manyfit.config import patch

    project.config(project.changed(model__hidden="${data.batch_size}"))
    base = load_config(project.run, ["seed=9"])
    patched = patch(base, ["data.batch_size=5"])
    assert patched == load_config(project.run, ["seed=9", "data.batch_size=5"])
    assert patched.model.hidden == 5
    assert base.model.hidden == 16


def test_a_config_that_was_patched_can_be_pickled(project):
    from manyfit.config import patch

    base = load(project, train__scheduler="cosine")
    patched = patch(base, ["train.epochs=3"])
    again = pickle.loads(pickle.dumps(patched))
    assert again == patched and again.fingerprint == patched.fingerprint
    assert patch(again, ["train.epochs=2"]) == base


@pytest.mark.parametrize("length", [{"epochs": 10, "steps_per_epoch": 4}, {"total_steps": 40}])
def test_a_schedule_with_a_length_of_its_own_has_no_horizon(project, length):
    assert (
        load(project, train__scheduler={"class": "one_cycle", "max_lr": 0.1, **length}).run.train.horizon
        is None
    )


def test_extend_from_python_is_relative_to_the_project(project):
    config = load_config({"extend": "runs/a/config.yaml", "seed": 8}, project=project.root)
    assert (config.seed, config.model.hidden) == (8, 8)
