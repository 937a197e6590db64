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
