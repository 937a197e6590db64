"""Kill a study at given disk operations, resume it, and compare the results; run as a program by tests.

Each study runs in a forked child of a process that has everything imported, which makes many of them affordable.
"""

import hashlib
import json
import os
import shutil
import sqlite3
import sys
from pathlib import Path

import torch

import manyfit
from manyfit.store import durable
from manyfit.store.folder import RunFolder

PLACES = ("trials", "groups")
QUERY = (
    "select trials.id, point, seed, trials.state, step, epoch, value, curve, is_over, points.state"
    " from trials join points on points.number = point order by trials.id"
)


def in_child(do):
    """Run a function in a child process, and return its exit code."""
    child = os.fork()
    if not child:
        try:
            do()
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            code = 1
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def sweep(folder, words, moment=None, count_to=None):
    seen = [0]

    def before(operation, path):
        seen[0] += any(place in path.parts for place in PLACES)
        if seen[0] == moment:
            os._exit(9)

    durable.before = before
    manyfit.sweep(folder, words, progress=False)
    if count_to is not None:
        count_to.write_text(str(seen[0]))


def lose_power(folder):
    """Remove what was appended to logs since the last checkpoint in the run's own folder."""
    for trial in (folder / "trials").glob("*"):
        own = sorted((trial / "checkpoints").glob("step-*/manifest.json"))
        length = json.loads(own[-1].read_text())["log_length"] if own else 0
        if (trial / "metrics.jsonl").exists():
            os.truncate(trial / "metrics.jsonl", length)


def results(folder):
    """Return the table, and a digest of the tensors of each kept checkpoint."""
    db = sqlite3.connect(folder / "ledger.db")
    table = db.execute(QUERY).fetchall()
    db.close()
    tensors = {}
    for trial in sorted((folder / "trials").iterdir()):
        for found in RunFolder(trial).checkpoints():
            data = b"".join(
                t.reshape(-1).view(torch.uint8).numpy().tobytes()
                for _, t in sorted(found.load().tensors.items())
            )
            tensors[f"{trial.name} {found.step}"] = hashlib.sha256(data).hexdigest()
        lines = (trial / "metrics.jsonl").read_text().splitlines()
        tensors[f"{trial.name} log"] = repr([{**json.loads(line), "time": 0} for line in lines])
    leftovers = [
        str(path)
        for path in folder.rglob("*")
        if path.name == "groups" or path.name.endswith((".tmp", ".old"))
    ]
    return {"table": table, "tensors": tensors, "leftovers": leftovers}


def clear(folder):
    for entry in folder.iterdir():
        if entry.name != "study.yaml":
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()


def main(folder, moments, words, loses_power):
    """Print the results of an undisturbed study, and of one that was killed at each moment and resumed.

    Moments are shares of all operations, or one part of all of them, such as `{"part": 2, "of": 8}`.
    """
    torch.set_num_threads(1)
    count = folder.parent / "count"
    sweep(folder, [], count_to=count)  # in this process, which imports everything
    total = int(count.read_text())
    print(json.dumps({"total": total, **results(folder)}), flush=True)
    every = range(1, total + 1)
    shares = moments if isinstance(moments, list) else ()
    for moment in [int(share * total) for share in shares] or every[moments["part"] :: moments["of"]]:
        clear(folder)
        code = in_child(lambda moment=moment: sweep(folder, [], moment))
        if loses_power:
            lose_power(folder)
        again = in_child(lambda: sweep(folder, words))
        found = results(folder) if again == 0 else {}
        print(json.dumps({"moment": moment, "codes": [code, again], **found}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3]), sys.argv[4] == "power")
