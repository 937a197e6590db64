"""Typed sections of a user's own, and reading a config."""

import pytest

from manyfit import ConfigError, load_config

SETTINGS = """
from dataclasses import dataclass, field
from typing import Annotated

from pydantic import BaseModel, Field

from manyfit import Derived, Kind


@dataclass(frozen=True)
class Augment:
    strength: float
    side: int = 8
    workers: Annotated[int, Kind.NEUTRAL] = 2
    steps: Annotated[int, Kind.BUDGET] = 10
    pixels: Annotated[int, Derived(lambda section: section.side ** 2)] = 0

    def __post_init__(self):
        if self.strength > 1:
            raise ValueError("strength must not be above 1")


class Inner(BaseModel):
    a: int = 1


class Tracker(BaseModel):
    url: Annotated[str, Kind.NEUTRAL]
    retries: Annotated[int, Kind.NEUTRAL] = Field(default=3, ge=0)
    inner: Inner = Inner()
    names: list[str] = Field(default_factory=list)


@dataclass
class Private:
    token: Annotated[str, Kind.NEUTRAL]
    size: int = 1


class Plain:
    def __init__(self, x: int = 1):
        pass
"""


@pytest.fixture
def load(project):
    project.write("src/settings.py", SETTINGS)

    def go(**sections):
        return load_config({**project.changed(), **sections}, project=project.root)

    return go


def test_item_and_dot_access(load):
    config = load(augment={"class": "settings.Augment", "strength": 0.5})
    assert config.augment.strength == config["augment"]["strength"] == 0.5
    assert config.augment.workers == 2
    assert config.train.optimizer.lr == config["train"]["optimizer"]["lr"] == 0.01
    assert set(config) >= {"augment", "train", "model"}


def test_a_wrong_name_suggests_the_right_one(load):
    config = load()
    with pytest.raises(AttributeError, match="did you mean 'epochs'"):
        config.train.epoch
    with pytest.raises(KeyError, match="did you mean 'epochs'"):
        config["train"]["epoch"]


def test_a_config_is_frozen(load):
    config = load(augment={"class": "settings.Augment", "strength": 0.5})
    with pytest.raises(AttributeError, match="frozen"):
        config.augment.strength = 1.0
    with pytest.raises(AttributeError):
        config.seed = 1


def test_derived_values_are_filled_once(load, project):
    config = load(augment={"class": "settings.Augment", "strength": 0.5, "side": 4})
    assert config.augment.pixels == config.section("augment").pixels == 16
    frozen = load_config(
        project.write("x.yaml", config.to_resolved_yaml().replace("augment.pixels: 16", "augment.pixels: 99"))
    )
    assert frozen.augment.pixels == 99


def test_kinds_of_its_fields(load):
    base = {"class": "settings.Augment", "strength": 0.5}
    first = load(augment=base)
    for change, same in [
        ({"strength": 0.6}, False),
        ({"side": 9}, False),
        ({"workers": 9}, True),
        ({"steps": 99}, True),
    ]:
        assert (load(augment={**base, **change}).fingerprint == first.fingerprint) is same
    kinds = {d.path: str(d.kind) for d in first.diff(load(augment={**base, "steps": 99, "workers": 9}))}
    assert kinds == {"augment.steps": "budget", "augment.workers": "neither"}


def test_a_pydantic_model(load):
    config = load(tracker={"class": "settings.Tracker", "url": "x", "inner": {"a": 2}, "names": ["p"]})
    assert config.tracker.inner.a == 2
    assert config.section("tracker").names == ["p"]


@pytest.mark.parametrize(
    ("section", "where", "message"),
    [
        ({"class": "settings.Augment"}, "augment.strength", "requires the parameter"),
        ({"class": "settings.Augment", "strength": 2.0}, "augment", "strength must not be above 1"),
        ({"class": "settings.Augment", "strength": 0.1, "sid": 3}, "augment.sid", "unknown key"),
        ({"class": "settings.Augment", "strength": 0.1, "side": 2.5}, "augment.side", "wrong type"),
        ({"class": "settings.Augment", "strength": 0.1, "pixels": 5}, "augment.pixels", "derived"),
        ({"class": "settings.Tracker", "url": "x", "retries": -1}, "augment.retries", "invalid value"),
        ({"class": "settings.Tracker", "url": "x", "inner": {"b": 1}}, "augment.inner.b", "unknown key"),
        ({"class": "settings.Plain"}, "augment", "not a custom section"),
        ({"class": "models.MLP"}, "augment", "not a custom section"),
    ],
)
def test_mistakes_in_a_section(load, section, where, message):
    with pytest.raises(ConfigError) as error:
        load(augment=section)
    assert any(problem.path == where and message in problem.message for problem in error.value.problems)


def test_values_of_a_section_reach_components(load):
    config = load(augment={"class": "settings.Augment", "strength": 0.5, "side": 4},
                  model={"class": "models.MLP", "hidden": "${augment.side}"})  # fmt: skip
    assert config.model.hidden == 4


def test_a_default_of_a_section_reaches_components(load):
    config = load(augment={"class": "settings.Augment", "strength": 0.5},
                  model={"class": "models.MLP", "hidden": "${augment.side}"})  # fmt: skip
    assert config.model.hidden == 8


def test_secrets(load, monkeypatch):
    monkeypatch.setenv("MANYFIT_TEST_TOKEN", "hunter2-hunter2")
    config = load(private={"class": "settings.Private", "token": "t=${secret:MANYFIT_TEST_TOKEN}"})
    assert config.section("private").token == "t=hunter2-hunter2"
    assert "hunter2" not in config.to_resolved_yaml() + config.dump() + repr(config) + repr(
        list(config.rows())
    )
    assert str(config.private.token) == "t=${secret:MANYFIT_TEST_TOKEN}"


def test_a_secret_cannot_be_identity(load, monkeypatch):
    monkeypatch.setenv("MANYFIT_TEST_TOKEN", "hunter2-hunter2")
    with pytest.raises(ConfigError, match="identity") as error:
        load(augment={"class": "settings.Augment", "strength": "${secret:MANYFIT_TEST_TOKEN}"})
    assert "hunter2" not in str(error.value)


def test_paths_are_relative_to_the_project(project, monkeypatch):
    monkeypatch.chdir("/")
    project.config(project.changed(model={"class": "models.Rich", "file": "data/x"}))
    config = load_config(project.run)
    assert config.project == project.root
    assert config.run.model.params["file"] == project.root / "data/x"


def test_defaults_of_components_can_be_read(load):
    config = load()
    assert config.model.dropout == config["model"]["dropout"] == 0.0
    assert config.train.optimizer.betas == (0.9, 0.999)
    assert config.export.mode == "min"


def test_a_derived_value_can_be_referred_to(load):
    config = load(augment={"class": "settings.Augment", "strength": 0.5, "side": "${data.batch_size}"},
                  model={"class": "models.MLP", "hidden": "${augment.pixels}"})  # fmt: skip
    assert config.model.hidden == 256


def test_a_derived_value_that_needs_itself(load):
    with pytest.raises(ConfigError, match="circular"):
        load(augment={"class": "settings.Augment", "strength": 0.5, "side": "${augment.pixels}"})


def test_derived_values_beside_a_secret(load, project, monkeypatch):
    project.write(
        "src/both.py",
        """
        from dataclasses import dataclass
        from typing import Annotated
        from manyfit import Derived, Kind

        @dataclass
        class Both:
            token: Annotated[str, Kind.NEUTRAL]
            side: int = 3
            pixels: Annotated[int, Derived(lambda b: b.side ** 2)] = 0
        """,
    )
    monkeypatch.setenv("MANYFIT_TEST_TOKEN", "hunter2-hunter2")
    config = load(both={"class": "both.Both", "token": "${secret:MANYFIT_TEST_TOKEN}"})
    assert config.both.pixels == 9
    assert (config.section("both").token, config.section("both").pixels) == ("hunter2-hunter2", 9)


def test_type_names_the_class_of_a_section_too(load):
    assert load(augment={"type": "settings.Augment", "strength": 0.5}).augment.strength == 0.5


def test_one_mistake_in_a_section_is_one_problem(load):
    with pytest.raises(ConfigError, match="1 problem"):
        load(augment={"class": "settings.Augment", "strength": "x"})
