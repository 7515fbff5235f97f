"""A PostgreSQL server of our own, on loopback, in a directory that goes with it.

It is the system's (Debian: ``postgresql``); its server refuses to run as root, and runs as
``postgres`` then.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psycopg

from tests.support.ports import free_port
from tests.support.waiting import SECONDS_MAX, wait_until


@contextlib.contextmanager
def own_postgresql() -> Iterator[str]:
    """Run a server that keeps a logical log; yields the URL of its maintenance database."""
    binaries = _find_postgresql()
    directory = Path("/tmp") / f"keeplast-pg-{secrets.token_hex(6)}"
    directory.mkdir(mode=0o700)
    user = "postgres" if os.geteuid() == 0 else None
    if user is not None:
        shutil.chown(directory, user)
    data = directory / "data"
    subprocess.run(
        [binaries / "initdb", "-D", data, "-U", "keeplast", "-A", "trust", "--no-locale", "-E",
         "UTF8", "--no-instructions"],
        check=True, user=user, capture_output=True, cwd=directory,
    )  # fmt: skip
    port = free_port()
    process = subprocess.Popen(
        [binaries / "postgres", "-D", data, "-p", str(port), "-h", "127.0.0.1", "-k", directory,
         "-c", "fsync=off", "-c", "wal_level=logical"],
        user=user, cwd=directory, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    url = f"postgresql://keeplast@127.0.0.1:{port}/postgres"

    def answers() -> bool:
        # It listens before it takes anybody.
        with contextlib.suppress(psycopg.OperationalError):
            psycopg.connect(url).close()
            return True
        return False

    try:
        wait_until(answers, by=lambda: process.poll() is None, words=lambda: str(process.args))
        yield url
    finally:
        stop_process(process, signal.SIGINT)
        shutil.rmtree(directory, ignore_errors=True)


def stop_process(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    """End a process that we started, and wait for it."""
    if process.poll() is None:
        process.send_signal(number)
        process.wait(SECONDS_MAX)


def _find_postgresql() -> Path:
    found = shutil.which("initdb")
    places = [Path(found).resolve().parent] if found else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for place in places:
        if (place / "initdb").exists() and (place / "postgres").exists():
            return place
    raise RuntimeError("PostgreSQL is needed: install the package postgresql (Debian, Ubuntu)")
