"""A worker never outlives its parent, whenever the parent dies."""

import subprocess
import sys
import textwrap

import pytest

LATE = textwrap.dedent(
    """
    import os, sys, time
    from manyfit.data.workers import follow_parent
    parent, late = os.getpid(), sys.argv[1] == "late"
    ready, started = os.pipe()
    if os.fork() == 0:
        if late:
            while os.getppid() == parent:
                time.sleep(0.01)
        follow_parent(parent)
        os.write(started, b"1")
        time.sleep(60)
    if not late:
        os.read(ready, 1)
    os.kill(os.getpid(), 9)
    """
)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
@pytest.mark.parametrize("when", ["late", "early"])
def test_a_worker_ends_when_its_parent_dies_before_or_after_it_begins(when):
    # The pipe is open as long as anybody lives.
    parent = subprocess.Popen([sys.executable, "-c", LATE, when], stdout=subprocess.PIPE)
    parent.communicate(timeout=20)
    assert parent.returncode == -9


HELD = textwrap.dedent(
    """
    import sys, time
    import numpy as np
    from manyfit.data.dataset import DatasetSource
    from manyfit.data.order import Order

    class Rows:
        def __len__(self): return 64
        def __getitem__(self, row):
            if row == 63 and sys.argv[2] == "stuck":
                time.sleep(600)
            return np.zeros(3), row

    def read():
        batches = DatasetSource(Rows(), workers=1).batches(Order(8, seed=None, epochs=1))
        for _ in range(4):
            next(batches)
        return batches

    def main():
        batches = read()
        if sys.argv[3] == "dropped":
            del batches
        raise SystemExit(7)  # the traceback holds the batches

    if __name__ == "__main__":
        if sys.argv[1] == "interpreter":
            main()
        import multiprocessing
        process = multiprocessing.get_context("fork").Process(target=main)
        process.start()
        process.join()
        sys.exit(process.exitcode)
    """
)


@pytest.mark.parametrize(
    ("kind", "state", "held"),
    [
        ("interpreter", "idle", "held"),
        pytest.param("interpreter", "stuck", "dropped", marks=pytest.mark.soak),
        pytest.param("process", "idle", "held", marks=pytest.mark.soak),
        pytest.param("process", "stuck", "held", marks=pytest.mark.soak),
    ],
)
def test_a_process_that_exits_does_not_wait_for_its_workers(kind, state, held, tmp_path):
    (tmp_path / "held.py").write_text(HELD)
    words = [sys.executable, str(tmp_path / "held.py"), kind, state, held]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (7, "")


FORKED = textwrap.dedent(
    """
    import os, sys
    import numpy as np
    from manyfit.data.dataset import DatasetSource
    from manyfit.data.order import Order

    class Rows:
        def __len__(self): return 512
        def __getitem__(self, row): return np.zeros(3), row

    batches = DatasetSource(Rows(), workers=2).batches(Order(8, seed=None, epochs=1))
    read = [next(batches)]
    if os.fork() == 0:
        sys.exit(0)
    _, status = os.wait()
    read += list(batches)
    print(len(read), status)
    """
)


@pytest.mark.soak
def test_a_fork_that_exits_leaves_the_workers_alone():
    words = [sys.executable, "-W", "ignore", "-c", FORKED]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.split() == ["64", "0"], done.stderr
