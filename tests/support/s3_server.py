"""An S3 server of our own: versitygw over a directory, ended by its own id."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.ports import free_port
from tests.support.postgresql_server import stop_process
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent


@contextmanager
def own_s3(directory: Path, bucket: str) -> Iterator[dict[str, str]]:
    """Serve ``directory`` with an empty bucket in it; yield what opens it, as options of a store.

    RuntimeError where the server was not built.
    """
    binary = shutil.which("versitygw") or str(ROOT / "build" / "bin" / "versitygw")
    if not Path(binary).exists():
        raise RuntimeError("versitygw is needed: make build/bin/versitygw builds it")
    port, access, secret = free_port(), "keeplast", secrets.token_hex(16)
    process = subprocess.Popen(
        [binary, "--port", f"127.0.0.1:{port}", "posix", str(directory)],
        env={**os.environ, "ROOT_ACCESS_KEY": access, "ROOT_SECRET_KEY": secret},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        wait_until(answers, by=lambda: process.poll() is None, words=lambda: str(process.args))
        (directory / bucket).mkdir(exist_ok=True)
        yield {
            "endpoint": f"http://127.0.0.1:{port}", "access_key_id": access,
            "secret_access_key": secret, "region": "us-east-1",
        }  # fmt: skip
    finally:
        stop_process(process, signal.SIGTERM)
