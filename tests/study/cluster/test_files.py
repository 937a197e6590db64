"""Files that are sent to nodes: what is sent, and what becomes of it."""

from __future__ import annotations

import os
import threading

import pytest

from manyfit.config import load_config
from manyfit.core.errors import FolderError, UsageError
from manyfit.study.executors.node_files import Delivered, NodeFiles, measure, same_file
from manyfit.study.executors.ray_cluster import import_ray
from manyfit.study.executors.shipment import Shipment, find_named_files, pack_code, pack_data


@pytest.fixture
def shipped(lab):
    """A project with data that the config names."""
    lab.project.write("data/rows.csv", "a\n1\n")
    lab.project.write("src/__pycache__/x.pyc", "no")
    lab.project.write("src/.env", "no")
    tree = lab.project.changed()
    tree["data"] = {**tree["data"]}
    lab.project.config(tree)
    config = load_config(lab.root / "runs" / "a")
    return lab, config


def deliver(lab, config, space, sees=()):
    shipment = Shipment(config, lab.root / "studies" / "s" / "study.yaml", space)
    store = []

    def put(part):
        store.append(part)
        return len(store) - 1

    return shipment, shipment.deliver(sees, put), store


def test_two_workers_of_a_node_unpack_once_and_use_it_together(shipped, tmp_path):
    lab, config = shipped
    _, files, store = deliver(lab, config, {"data.file": ["data/rows.csv"]})
    fetched = []

    def fetch(number):
        fetched.append(number)
        return store[number]

    nodes, found = [NodeFiles(tmp_path / "root") for _ in range(3)], []
    threads = [threading.Thread(target=lambda n=n: found.append(n.unpack(files, fetch))) for n in nodes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), "a worker waits for another one that goes on"
    assert sorted(fetched) == list(range(len(store)))
    for project in found:
        assert (project / "data" / "rows.csv").read_text() == "a\n1\n"
        assert (project / "studies" / "s" / "study.yaml").is_file()
        assert list((project / "src").glob("*.py"))
        assert not list(project.rglob("*.pyc")) + list(project.rglob(".env"))
    nodes[0].remove()
    assert (found[1] / "data" / "rows.csv").is_file() or (found[2] / "data" / "rows.csv").is_file()
    for node in nodes[1:]:
        node.remove()
    assert not [path for path in (tmp_path / "root").iterdir() if path.is_dir()]


def test_what_a_killed_worker_left_is_removed_by_the_next(tmp_path):
    dead = NodeFiles(tmp_path / "root")
    folder = dead.make_folder("worker")
    alive = NodeFiles(tmp_path / "root")
    kept = alive.make_folder("worker")
    assert folder.is_dir()
    os.close(dead._own.pop(folder))  # as the system does when a process dies
    NodeFiles(tmp_path / "root")
    assert not folder.exists()
    assert kept.is_dir()


def test_a_folder_of_somebody_else_is_refused(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "root").symlink_to(tmp_path / "there")
    with pytest.raises(FolderError, match="is not a folder that only this user can read"):
        NodeFiles(tmp_path / "root")
    (tmp_path / "open").mkdir(mode=0o755)
    (tmp_path / "open").chmod(0o777)
    with pytest.raises(FolderError, match="only this user"):
        NodeFiles(tmp_path / "open")


def test_files_are_found_by_the_values_that_name_them(shipped):
    _, config = shipped
    space = {"data.file": ["data/rows.csv", "https://example.org/x.csv", "nothing.csv", "/", ".."]}
    (found,) = find_named_files(config, space)
    assert (found.name, found.key, found.size) == ("data/rows.csv", "data.file[0]", 4)
    assert same_file(found.path, *measure(found.path))
    os.utime(found.path, ns=(1, 1))
    assert not same_file(found.path, found.size, found.changed)


def test_data_in_the_source_folder_is_sent_once(shipped, tmp_path):
    lab, config = shipped
    lab.project.write("data/prepare.py", "x = 1\n")
    _, files, store = deliver(lab, config, {"data.folder": ["data"]})
    project = NodeFiles(tmp_path / "root").unpack(files, store.__getitem__)
    assert (project / "data").is_symlink()
    assert (project / "data" / "prepare.py").is_file()


def test_a_node_that_sees_a_file_gets_a_link(shipped, tmp_path):
    lab, config = shipped
    path = lab.root / "data" / "rows.csv"
    shipment, files, store = deliver(lab, config, {"data.file": ["data/rows.csv"]}, {str(path)})
    assert files[1] == Delivered("data/rows.csv", "", link=str(path))
    project = NodeFiles(tmp_path / "root").unpack(files, store.__getitem__)
    assert (project / "data" / "rows.csv").readlink() == path
    assert shipment.find_missing(()) == ""


def test_what_cannot_be_sent_is_named(shipped, tmp_path):
    lab, config = shipped
    (tmp_path / "far.csv").write_text("a\n")
    outside = lab.root.parent / f"{lab.root.name}-outside.csv"
    outside.write_text("a\n")
    shipment = Shipment(config, lab.root / "studies" / "s" / "study.yaml", {"data.file": [str(outside)]})
    assert f"data.file[0]: {outside} is not there" in shipment.find_missing(())
    assert shipment.find_missing({str(outside)}) == ""


def test_large_archives_are_passed_on_in_parts(shipped, tmp_path, monkeypatch):
    monkeypatch.setattr("manyfit.study.executors.shipment.CHUNK", 1000)
    lab, config = shipped
    (lab.root / "data" / "rows.csv").write_bytes(os.urandom(12_345))
    _, files, store = deliver(lab, config, {"data.file": ["data/rows.csv"]})
    assert all(len(part) <= 1000 for part in store)
    project = NodeFiles(tmp_path / "root").unpack(files, store.__getitem__)
    assert (project / "data" / "rows.csv").read_bytes() == (lab.root / "data" / "rows.csv").read_bytes()


def test_code_that_is_too_large_is_refused(shipped, monkeypatch):
    lab, config = shipped
    monkeypatch.setattr("manyfit.study.executors.shipment.MOST_CODE", 10)
    with pytest.raises(UsageError, match="would be sent to every node"):
        pack_code(config, lab.root / "studies" / "s" / "study.yaml", (), len)


def test_a_digest_depends_on_names_and_contents_alone(shipped):
    _, config = shipped
    (wanted,) = find_named_files(config, {"data.file": ["data/rows.csv"]})
    first = pack_data(wanted, len).digest
    os.utime(wanted.path, ns=(1, 1))
    assert pack_data(wanted, len).digest == first
    wanted.path.write_text("b\n1\n")
    assert pack_data(wanted, len).digest != first


def test_a_token_is_sent_to_clusters_that_are_not_ours(tmp_path, monkeypatch):
    """`ray start` asks for a token if the user has one, but a client sends it only in the mode `token`."""
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    import_ray(is_local=False)
    assert "RAY_AUTH_MODE" not in os.environ
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("x" * 32)
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    import_ray(is_local=False)
    assert os.environ["RAY_AUTH_MODE"] == "disabled"
    monkeypatch.delenv("RAY_AUTH_MODE")
    import_ray(is_local=False)
    assert os.environ.pop("RAY_AUTH_MODE") == "token"
