"""Files that are sent to nodes: what is sent, and what becomes of it."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import time
from multiprocessing.connection import wait

import numpy as np
import pytest
import torch
from tests.study.test_hop_matrix import prepare

from manyfit.config import load_config
from manyfit.core.errors import FolderError, UsageError
from manyfit.core.state import State
from manyfit.data.prepared import list_parts, open_split
from manyfit.store.packed_state import PackedState
from manyfit.study.executors.node_files import Delivered, NodeFiles, list_made, measure, part_key, same_file
from manyfit.study.executors.part_supply import PartSupply
from manyfit.study.executors.shipment import Shipment, find_named_files, pack_code, pack_data
from manyfit.study.executors.state_transfer import Freight, MachineProbe, answer_probe

PREPARED = {
    "seed": 1,
    "data": {"class": "manyfit.spec.EtlData", "etl_dir": "etl", "batch_size": 8},
    "model": {"class": "models.MLP"},
    "train": {"epochs": 1, "loss": "cross_entropy", "optimizer": "adamw"},
}


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


def test_only_the_rows_that_are_read_are_sent(lab, tmp_path):
    """Shards of prepared data come when they are read, once for all workers of a node."""
    layout = prepare(lab.root, 3)
    lab.project.config(PREPARED)
    shipment, files, store = deliver(lab, load_config(lab.root / "runs" / "a"), {})
    workers, sent = [], []
    for _ in range(2):
        node = NodeFiles(tmp_path / "root")
        project = node.unpack(files, lambda number: store[number])
        workers.append(
            (node, PartSupply(node, project, files), open_split(project / "etl" / layout.name, "train"))
        )
    whole = open_split(layout, "train")
    assert not list((workers[0][2]._folder / "train").glob("*.arrow"))

    def answer(supply):
        """Answer one request, as an executor does."""
        wait(supply.descriptors, 20)
        for request in supply.take_requests():
            sent.append(request.part)
            part, problem = shipment.supply(request, lambda data: store.append(data) or len(store) - 1)
            supply._files.add_part(part, lambda number: store[number])
            supply.supply(request, part, problem)

    first = np.arange(*whole.layout.bounds[:2])
    for _, supply, source in workers:
        thread = threading.Thread(target=answer, args=(supply,))
        thread.start()
        batch = source.gather(first)
        thread.join(20)
        assert np.array_equal(batch.inputs, whole.gather(first).inputs)
    assert sent == ["train/00000-00000.arrow"]  # the second worker found it on the node
    node, supply, source = workers[0]
    (layout / "train" / "00001-00000.arrow").unlink()
    thread = threading.Thread(target=answer_missing, args=(shipment, supply))
    thread.start()
    with pytest.raises(FolderError, match=r"the driver cannot send it: .*No such file"):
        source.gather(np.arange(*whole.layout.bounds[1:3]))
    thread.join(20)
    for node, supply, _ in workers:
        supply.close()
        node.remove()
    assert [path.name for path in (tmp_path / "root").iterdir() if path.is_dir()] == []


def answer_missing(shipment, supply):
    wait(supply.descriptors, 20)
    for request in supply.take_requests():
        supply.supply(request, *shipment.supply(request, len))


def test_rows_that_were_made_on_a_node_are_kept_there(lab, tmp_path):
    layout = prepare(lab.root, 2)
    parts = list_parts(layout)
    node = NodeFiles(tmp_path / "root")
    for name, part in parts.items():
        if name.startswith("train/00001"):
            node.keep_part(part_key(part), (layout / name).read_bytes())
    node.remove()
    made = list_made(tmp_path / "root")
    assert made == {part_key(part) for name, part in parts.items() if name.startswith("train/00001")}
    again = NodeFiles(tmp_path / "root")
    for key in made:
        assert again.find_part(key).is_file()
    again.remove()
    assert list_made(tmp_path / "root") == made
    lab.project.config(PREPARED)
    shipment = Shipment(load_config(lab.root / "runs" / "a"), lab.root / "studies" / "s" / "study.yaml")
    assert shipment.find_shards(made) == (1,)
    old = time.time() - 8 * 24 * 3600
    for key in made:
        os.utime(tmp_path / "root" / key, (old, old))
    NodeFiles(tmp_path / "root").remove()
    assert list_made(tmp_path / "root") == frozenset()


def test_states_for_a_process_of_this_machine_are_not_copied():
    """It opens the files of the sender; what the sender has closed is an error, and never another file."""
    state = PackedState.pack(State({"w": torch.arange(1000.0)}, {"step": 3}))
    sent = pickle.dumps(Freight.pack({"t": state}, is_near=True), protocol=5)
    assert len(sent) < 1000
    far = pickle.dumps(Freight.pack({"t": state}), protocol=5)
    assert len(far) > 4000
    for data in (sent, far):
        code = f"import pickle, sys; found = pickle.loads({data!r}).open()['t'].unpack()\n"
        code += "print(float(found.tensors['w'].sum()), found.values['step'])"
        found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert found.stdout.split() == ["499500.0", "3"]
    del state
    other = PackedState.pack(State({"w": torch.zeros(1000)}, {}))  # it may get the number of the closed file
    with pytest.raises(OSError, match=r"closed a file|No such file"):
        pickle.loads(sent)
    assert other.size


def test_a_probe_is_answered_on_the_same_machine_only():
    probe = MachineProbe()
    assert probe.is_answered_by(answer_probe(probe.handle))
    assert not probe.is_answered_by(answer_probe(None))
    assert not probe.is_answered_by(answer_probe(probe.handle._replace(process=999_999_999)))
    assert not probe.is_answered_by(answer_probe(probe.handle._replace(inode=1)))
