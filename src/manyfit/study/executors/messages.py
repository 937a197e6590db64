"""Messages between the driver and its workers. States travel as files in memory, beside the message."""

from __future__ import annotations

import errno
import os
import pickle
import socket
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any, Final

from manyfit.store.packed_state import passing_files, receiving_files

MOST_FILES: Final = 64
"""Files that are passed at once; the system allows about 250."""


def send(pipe: Connection, message: Any) -> None:
    """Send a message; files of packed states follow it."""
    with passing_files() as files:
        data = bytes(ForkingPickler.dumps(message))
    pipe.send_bytes(len(files).to_bytes(4, "little") + data)
    for begin in range(0, len(files), MOST_FILES):
        with socket.fromfd(pipe.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as channel:
            socket.send_fds(channel, [b"!"], files[begin : begin + MOST_FILES])


def receive(pipe: Connection) -> Any:
    """Receive a message. Raises EOFError if the other side has ended, also in the middle of a message."""
    data = pipe.recv_bytes()
    count, files = int.from_bytes(data[:4], "little"), list[int]()
    while len(files) < count:
        with socket.fromfd(pipe.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as channel:
            found, more, flags, _ = socket.recv_fds(channel, 1, MOST_FILES)
        files += more
        if flags & socket.MSG_CTRUNC:
            raise OSError(errno.EMFILE, "too many open files: raise the limit (ulimit -n)")
        if not found:
            for file in files:
                os.close(file)
            raise EOFError
    with receiving_files(files):
        return pickle.loads(memoryview(data)[4:])
