"""The flat layout: what it needs, what is free in it, and how mistakes are named."""

import logging

import pytest

from manyfit import ConfigError, load_config, train
from manyfit.config.load import patch
from manyfit.config.typed.config_struct import ConfigStruct
from manyfit.core.errors import UsageError
from manyfit.pipeline import ModelBuilderBase


def problems(folder, *overrides):
    with pytest.raises(ConfigError) as caught:
        load_config(folder, overrides)
    return {problem.path: str(problem) for problem in caught.value.problems}


def test_every_missing_key_is_named_at_once(tiny):
    folder = tiny.write(without=("data_loader_class", "epochs", "export", "data_dir"), data_loader_clas="x")
    found = problems(folder)
    assert set(found) == {"data_loader_class", "epochs", "export", "data_dir"}
    assert "config.yaml" in found["epochs"]
    assert "a similar key is data_loader_clas, at " in found["data_loader_class"]
    assert "--data-dir" in found["data_dir"]


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("data_loader_class", "dataset.Loadr", ["config.yaml:", "data_loader_class", "dataset.Loader"]),
        ("data_loader_class", "datset.Loader", ["data_loader_class", "no module 'datset'", "dataset"]),
        (
            "data_loader_class",
            "dataset.Unfinished",
            ["data_loader_class", "does not implement create_test_generator"],
        ),
        ("data_loader_class", "models.Builder", ["data_loader_class", "DataLoaderBase"]),
        ("model_builder_class", "subprocess.Popen", ["model_builder_class", "ModelBuilderBase"]),
        ("evaluator_class", "evaluation.error", ["evaluator_class", "EvaluatorBase"]),
        ("augmentor_class", "dataset.Loader", ["augmentor_class", "AugmentorBase"]),
        ("preprocessor_class", 3, ["preprocessor_class", "class path"]),
        ("epochs", "many", ["epochs", "a whole number"]),
        ("epochs", 0, ["epochs"]),
        ("batch_size", -1, ["batch_size"]),
        ("export", {"metric": "val_loss", "mod": "min"}, ["export.mod", "mode"]),
        ("train", 5, ["train", "not a mapping"]),
        ("model_builder", {"hiden": 3}, ["model_builder.hiden", "hidden"]),
        ("model_builder", {"hidden": "wide"}, ["model_builder.hidden", "a whole number"]),
        ("model_builder", {"activation": "rellu"}, ["model_builder.activation", "relu"]),
    ],
)
def test_a_mistake_is_named_by_the_users_own_key(tiny, key, value, words):
    found = "\n".join(problems(tiny.write(**{key: value})).values())
    assert all(word in found for word in words), found


def test_mistakes_of_several_kinds_are_reported_together(tiny):
    changes = {"data_loader_class": "dataset.Nothing", "epochs": 1.5, "model_builder": {"hiden": 1}}
    assert set(problems(tiny.write(**changes))) == {"data_loader_class", "epochs", "model_builder.hiden"}
    # A key that is missing is told first, before anything is imported.
    assert set(problems(tiny.write(without=("export", "project_name"), **changes))) == {
        "export",
        "project_name",
    }


def test_keys_of_ones_own_are_free_and_reach_components_as_written(tiny):
    own = {"class": "not a class", "deep": [{"a": 1}]}
    config = load_config(tiny.write(model="resnet", data=own, input_height=28, twice="${input_height}"))
    settings = config.run.data.params["settings"]
    assert settings.model == "resnet" and settings.data["class"] == "not a class"
    assert settings.data.deep[0].a == 1 and settings.twice == 28
    assert settings.evaluator_class == "evaluator_class: evaluation.Evaluator"
    assert config.run.evaluate.evaluator.params["evaluator"].__name__ == "Evaluator"


def test_a_key_that_nothing_reads_is_a_warning(tiny, caplog):
    folder = tiny.write(preprocessor={"scale": 1.0, "scal": 2.0}, augmentor={"strength": 1}, scale=1.0)
    with caplog.at_level(logging.WARNING, "manyfit"):
        train(folder, ["epochs=1"])
    (said,) = [r.getMessage() for r in caplog.records if "reads" in r.getMessage()]
    assert "augmentor" in said and "preprocessor.scal " in f"{said.replace(',', ' ')} "


def test_the_data_folder_is_an_option_else_a_key(tiny, project_cli):
    folder = tiny.write(without=("data_dir",))
    other = tiny.root / "elsewhere"
    other.mkdir()
    assert load_config(folder, [f"data_dir={other}"]).run.data.params["data_dir"] == other
    assert load_config(tiny.write("b")).run.data.params["data_dir"] == tiny.root / "data"
    assert project_cli("train", folder, "--data-dir", other, "--fast-dev-run")[0] == 0
    assert project_cli("train", folder, "--data-dir", other, "epochs=1")[0] == 0
    assert project_cli("train", folder)[0] == 0  # it is remembered
    folder = tiny.write("new", without=("data_dir",))
    code, said = project_cli("train", folder)
    assert code == 2 and "data_dir" in said and "Traceback" not in said


def test_exactly_one_yaml_counts_only_what_people_wrote(tiny):
    folder = tiny.write(epochs=1)
    train(folder)
    assert (folder / "config.resolved.yaml").exists()
    load_config(folder)
    (folder / "other.yaml").write_text("a: 1\n")
    with pytest.raises(ConfigError, match=r"other\.yaml"):
        load_config(folder)
    (folder / "config.yaml").rename(folder / "mine.yml")
    with pytest.raises(ConfigError, match=r"several configs: mine\.yml, other\.yaml"):
        load_config(folder)
    (folder / "other.yaml").unlink()
    assert load_config(folder).file.name == "mine.yml"
    assert train(folder).trained_steps == 0
    assert train(folder, ["epochs=2"]).trained_steps == 10  # beside the copy that manyfit keeps
    assert load_config(folder).file.name == "mine.yml"


def test_what_is_written_loads_again_and_is_the_same(tiny):
    config = load_config(tiny.write(note="kept"))
    text = tiny.root / "runs" / "copy.yaml"
    text.write_text(config.dump())
    again = load_config(text)
    assert again == config and again.fingerprint == config.fingerprint
    changed = patch(config, ["model_builder.hidden=16"])
    assert [(d.path, str(d.kind)) for d in config.diff(changed)] == [("model_builder.hidden", "identity")]
    assert patch(config, ["epochs=9"]).fingerprint == config.fingerprint
    assert patch(config, ["data_dir=src"]).fingerprint == config.fingerprint
    assert patch(config, ["note=other"]).fingerprint != config.fingerprint


def test_a_typed_class_takes_what_is_at_the_top_too():
    class Builder(ModelBuilderBase):
        width: int = 3
        rate: float = 0.1

        def get_compiled_model(self): ...

    assert (Builder().width, Builder().rate) == (3, 0.1)
    made = Builder(ConfigStruct({"width": 5, "model_builder": {"rate": 1}}))
    assert (made.width, made.rate) == (5, 1.0)
    with pytest.raises(ConfigError, match="did you mean: rate"):
        Builder(ConfigStruct({"model_builder": {"rat": 1.0}}))


def test_a_class_that_reads_the_config_itself_is_not_checked():
    class Builder(ModelBuilderBase):
        width: int

        def _load_params(self, config):
            self.width = config.width

        def get_compiled_model(self): ...

    assert Builder(ConfigStruct(width="wide", model_builder={"x": 1})).width == "wide"


def test_a_struct_reads_like_a_mapping_and_names_what_is_missing():
    config = ConfigStruct(a={"b": [1, {"c": 2}]}, d=None)
    assert config.a.b[1].c == config["a"]["b"][1]["c"] == 2
    assert getattr(config, "e", 7) == 7 and "d" in config and dict(config)["d"] is None
    with pytest.raises(AttributeError, match=r"the config has no a\.bb; it has a\.b"):
        config.a.bb
    config.a.x = {"y": 1}
    assert config.a.x.y == 1 and config.plain()["a"]["x"] == {"y": 1}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"do_train_augmentation": True}, "do_train_augmentation is true, but there is no augmentor_class"),
        (
            {"augmentor_class": "dataset.OnlyTraining", "do_validation_augmentation": True},
            "OnlyTraining has no add_validation_augmentation",
        ),
        ({"data_loader_class": "dataset.Pairs"}, "Pairs.create_"),
        ({"data_loader_class": "dataset.Few"}, "Few.create_validation_generator reports 20 data points"),
        ({"model_builder_class": "models.Weighty"}, "Weighty.get_class_weight must return a number for each"),
        (
            {"data_loader_class": "dataset.Broken"},
            "Broken.create_training_generator failed: FileNotFoundError",
        ),
        ({"model_builder_class": "models.Wrong"}, "Wrong.get_compiled_model must return"),
        ({"model_builder_class": "models.Plain"}, "nothing trains the module of Plain"),
        ({"model_builder_class": "models.Narrow"}, "mat1 and mat2 shapes cannot be multiplied"),
        ({"evaluator_class": "evaluation.Reserved"}, "a report already has a column named 'loss'"),
        ({"export": {"metric": "val_los", "mode": "min"}}, "did you mean val_loss?"),
        ({"data_dir": "nowhere", "data_loader_class": "dataset.Broken"}, "nowhere does not exist"),
    ],
)
def test_what_only_shows_when_it_runs_is_found_before_the_first_step(tiny, project_cli, changes, words):
    folder = tiny.write(**changes)
    code, said = project_cli("train", folder)
    assert code in (1, 2) and words in said and "Traceback" not in said, said
    assert not (folder / "checkpoints").exists()
    if "class" in next(iter(changes)):
        assert project_cli("check", folder)[0] == 1


def test_two_values_are_named_with_the_method(tiny):
    with pytest.raises(
        UsageError, match=r"Pairs\.create_\w+ must yield \(x, y, sample_weight\), but yields 2"
    ):
        train(tiny.write(data_loader_class="dataset.Pairs"))


def test_editors_get_a_schema_of_the_flat_layout(tiny):
    import jsonschema

    from manyfit.config.json_schema import json_schema

    config = load_config(tiny.write(own={"a": 1}))
    schema = json_schema(config)
    given = config.given.tree
    from manyfit.config.tree.nodes import plain

    jsonschema.validate(plain(given), schema)
    for wrong in ({"model_builder": {"hiden": 3}}, {"epochs": "many"}, {"evaluator_class": 3}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**plain(given), **wrong}, schema)


def test_another_evaluator_is_no_other_run(tiny):
    folder = tiny.write(epochs=1)
    train(folder, callbacks=[])
    assert train(folder, ["evaluator_class=evaluation.Other"], callbacks=[]).trained_steps == 0


def test_epochs_have_one_place(tiny):
    assert load_config(tiny.write(), ["train.epochs=7"]).run.train.epochs == 7
    found = problems(tiny.write(train={"epochs": 5}))
    assert "in this layout, epochs is a top-level key" in found["train.epochs"]


def test_a_secret_is_for_trackers_alone(tiny, monkeypatch):
    monkeypatch.setenv("TOKEN", "very-secret-token")
    address = {"mlflow": "http://me:${secret:TOKEN}@127.0.0.1:9"}
    config = load_config(tiny.write(track=address))
    assert config.run.data.params["settings"].track.mlflow == "http://me:${secret:TOKEN}@127.0.0.1:9"
    assert "secret cannot be passed" in "".join(problems(tiny.write(key="${secret:TOKEN}")).values())
