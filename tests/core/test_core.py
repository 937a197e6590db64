"""Small things that everything else stands on."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from manyfit.core import redaction
from manyfit.core.errors import ConfigError, ExtraMissing, Interrupted, Origin, Problem
from manyfit.core.lazy import import_optional
from manyfit.core.names import indefinite, listing, nearest, show_value
from manyfit.core.seeds import derive


@pytest.mark.parametrize(
    ("name", "names", "best"),
    [
        ("epoch", ["epochs", "loss"], "epochs"),
        ("Batch-Size", ["batch_size"], "batch_size"),
        ("xyz", ["epochs"], ""),
        ("a", [], ""),
    ],
)
def test_nearest(name, names, best):
    assert nearest(name, names) == best


def test_wording():
    assert listing("abcd", limit=2) == "a, b and 2 more"
    assert show_value(2.5) == "2.5 (a number)"
    assert show_value(None) == "null"
    assert len(show_value("x" * 500)) < 100
    assert [indefinite(noun) for noun in ("model", "optimizer")] == ["a model", "an optimizer"]


def test_a_config_error_lists_each_problem_once():
    problem = Problem("train.epoch", Origin("a.yaml", 3), "unknown key", "one of epochs", "epoch", "epochs")
    error = ConfigError([problem, problem])
    assert str(error) == (
        "1 problem in the configuration:\n  a.yaml:3: train.epoch: unknown key\n"
        "      expected: one of epochs\n      received: epoch\n      did you mean: epochs"
    )
    assert error.exit_code == 2


def test_exit_codes():
    assert Interrupted("x", 15).exit_code == 143


def test_an_extra_that_is_missing():
    with pytest.raises(ExtraMissing, match=r"pip install 'manyfit\[ray\]'"):
        import_optional("no_such_package_at_all", "ray")
    assert import_optional("json", "ray").dumps


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=8).filter(lambda v: len(v.strip()) >= 8))
def test_no_form_of_a_secret_survives(value):
    import json
    from unittest.mock import patch
    from urllib.parse import quote, quote_plus

    with patch.dict("os.environ", {}), patch.object(redaction, "_revealed", {value: "NAME"}):
        forms = [
            value,
            json.dumps(value),
            json.dumps(value, ensure_ascii=False),
            repr(value),
            quote(value, safe=""),
            quote(value),
            json.dumps(json.dumps({"k": value})),
            repr(json.dumps({"k": value})),
            json.dumps(repr(value)),
            repr(value.encode()),
            repr(repr(value.encode())),
            json.dumps({"k": quote(value)}),
            base64.b64encode(value.encode()).decode(),
            value.encode().hex(),
        ]
        for form in [*forms, repr(f'it is "{value}"'), repr(f"it's {value}"), quote_plus(value)]:
            cleaned = redaction.redact(f"<{form}>")
            assert "${secret:NAME}" in cleaned
            core = form.strip("'\"")
            assert core not in cleaned


def test_a_secret_prints_its_template(monkeypatch):
    monkeypatch.setenv("MANYFIT_TEST_TOKEN", "abc123")
    secret = redaction.Secret("https://x:${secret:MANYFIT_TEST_TOKEN}@host")
    assert (
        f"{secret} {secret!r}"
        == "https://x:${secret:MANYFIT_TEST_TOKEN}@host " + "https://x:${secret:MANYFIT_TEST_TOKEN}@host"
    )
    assert secret.reveal() == "https://x:abc123@host"
    assert secret.names == ("MANYFIT_TEST_TOKEN",)
    assert redaction.redact("it is abc123") == "it is ${secret:MANYFIT_TEST_TOKEN}"


def test_seeds_stay_the_same_for_ever():
    """Pinned: a change would change the result of every run."""
    assert derive(7, "weights") == 3704256060941664783
    assert len({derive(seed, "order", epoch) for seed in range(50) for epoch in range(50)}) == 2500
