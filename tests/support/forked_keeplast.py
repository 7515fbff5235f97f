"""``keeplast`` as a process that is forked from one which has loaded what commands need.

Most of what a short command takes is loading. Here one process loads it, and each command is a
child of that: with the arguments, the directory, the variables and the streams of who typed it, and
with an exit code of its own. How a command starts from nothing is what ``unit/cli/test_process.py``
is about.

The rule: **the process that is forked has one thread**, and it ends with the process that began it.
"""

from __future__ import annotations

import atexit
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from ast import literal_eval
from functools import cache
from pathlib import Path

import numpy.ma  # noqa: F401 - commands load what stands here, each where it is needed
import pydantic.type_adapter  # noqa: F401
import sqlalchemy.dialects.sqlite  # noqa: F401

import keeplast.api.export
import keeplast.api.stored_logs  # noqa: F401
from tests.support import called

ROOT = Path(__file__).resolve().parents[2]
ASK = """\
import os, socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
socket.send_fds(connection, [b"."], [0, 1, 2])
connection.sendall(repr((sys.argv[2:], os.getcwd(), dict(os.environ))).encode())
connection.shutdown(socket.SHUT_WR)
sys.exit(int(connection.recv(3) or 1))
"""
"""What a program of a page does: it passes on what it was given, and ends as the command does."""


@cache
def begin() -> str:
    """Have the process that is forked, and return the socket that it is asked by."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.support.forked_keeplast"], cwd=ROOT, text=True,
        env={**os.environ, "PYTHONUTF8": "1"}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    atexit.register(process.communicate)
    assert process.stdout is not None
    return process.stdout.readline().rstrip()


def serve() -> None:
    """Be forked whenever a command is typed, until stdin is closed."""
    with tempfile.TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX) as listener:
        # What a command loads as it goes, a first one has loaded.
        called.run(
            "clean", ROOT / "src/keeplast/samples/broker-4.3.0", "--topic", "orders", "--despite",
            "dirty-ratio", "--runner", "local", "--cores", "1", "--to", f"{folder}/cleaned", code=0,
        )  # fmt: skip
        assert 1 == threading.active_count()
        listener.bind(path := f"{folder}/socket")
        listener.listen()
        print(path, flush=True)
        while [listener] == select.select([listener, sys.stdin], [], [])[0]:
            connection, _ = listener.accept()
            if os.fork() == 0:
                do(connection)
            connection.close()
            os.waitpid(-1, os.WNOHANG)


def do(connection: socket.socket) -> None:
    """Do one command in this process, and end it.

    Who asked gets the code that it exits with, else 1; a signal to who asked does not reach it.
    """
    _, streams, _, _ = socket.recv_fds(connection, 1, 3)
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    with connection.makefile("rb") as asked:
        (script, *sys.argv), place, variables = literal_eval(asked.read().decode())
    os.chdir(place)
    os.environ.clear()
    os.environ.update(variables)
    try:
        exec(script, {"__name__": "__main__"})
    except SystemExit as ended:
        sys.stdout.flush()
        connection.sendall(f"{ended.code or 0}".encode())
    except BaseException:  # noqa: BLE001 - a process that is at its end says so
        traceback.print_exc()
    # To take apart what was loaded costs more than the command.
    os._exit(0)


if __name__ == "__main__":
    serve()
