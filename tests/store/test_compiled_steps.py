"""Compiled steps are loaded if this user has written them, for this project, under this key."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from manyfit.core import seal
from manyfit.store.compiled_steps import CompiledSteps


@pytest.fixture
def store(tmp_path):
    return CompiledSteps(tmp_path / "compiled", tmp_path)


def test_what_was_written_is_read(store):
    assert store.read("one") is None
    store.write("one", b"some\ncode")
    assert store.read("one") == b"some\ncode" and store.read("other") is None


@given(place=st.integers(0, 200), bit=st.integers(0, 7))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_changed_file_is_not_read(store, place, bit):
    store.write("one", b"some code that would be executed")
    file = store.folder / "one.bin"
    data = bytearray(file.read_bytes())
    data[place % len(data)] ^= 1 << bit
    file.write_bytes(data)
    assert store.read("one") is None


def test_a_file_under_another_name_or_in_another_project_is_not_read(store, tmp_path, caplog):
    store.write("one", b"code")
    (store.folder / "one.bin").rename(store.folder / "two.bin")
    assert store.read("two") is None and "two.bin is not loaded" in caplog.text
    store.write("one", b"code")
    assert CompiledSteps(store.folder, tmp_path / "elsewhere").read("one") is None


def test_a_file_of_somebody_else_is_not_read(store, tmp_path, monkeypatch):
    store.write("one", b"code")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "other-user"))
    seal._sealer.cache_clear()
    assert store.read("one") is None


def test_without_a_key_nothing_is_kept(store, monkeypatch):
    monkeypatch.setattr(seal.Sealer, "seal", lambda self, text: "")
    store.write("one", b"code")
    assert not store.folder.exists()


def test_files_that_cannot_be_written_or_read(store, tmp_path):
    (tmp_path / "compiled").write_text("a file where a folder should be")
    store.write("one", b"code")
    assert store.read("one") is None


def test_a_study_that_was_moved_is_not_made_anew(tmp_path):
    store = CompiledSteps(tmp_path / "moved" / "compiled", tmp_path)
    store.write("one", b"code")
    assert not (tmp_path / "moved").exists() and store.read("one") is None
