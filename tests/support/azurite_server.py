"""Azurite, Microsoft's emulator of Azure's blobs, on loopback, with what it keeps in its memory.

``make test-services`` installs it into ``build/azurite``. Its account and key are in its manual,
the same for everybody, and no secret.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from email.utils import format_datetime
from pathlib import Path

from tests.support.ports import free_port
from tests.support.postgresql_server import stop_process
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
MAIN = ROOT / "build/azurite/node_modules/azurite/dist/src/blob/main.js"
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
API_VERSION = "2021-12-02"
LINES_OF_HEADERS = 11
"""Of what is signed: standard headers that a request without content does not have."""


@contextlib.contextmanager
def own_azurite(container: str) -> Iterator[dict[str, str]]:
    """Run a server with an empty container; yields the options of its account."""
    node = shutil.which("node")
    if node is None or not MAIN.exists():
        raise RuntimeError("Azurite is needed: make test-services installs it with npm")
    port = free_port()
    process = subprocess.Popen(
        [node, MAIN, "--blobHost", "127.0.0.1", "--blobPort", str(port), "--inMemoryPersistence",
         "--silent", "--disableTelemetry", "--skipApiVersionCheck"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"

    def has_container() -> bool:
        # It listens before its tables are there.
        with contextlib.suppress(OSError):
            _make_container(endpoint, container)
            return True
        return False

    try:
        wait_until(
            has_container, by=lambda: process.poll() is None, words=lambda: str(process.args)
        )
        yield {"account_name": ACCOUNT, "account_key": KEY, "endpoint": endpoint}
    finally:
        stop_process(process, signal.SIGTERM)


def _make_container(endpoint: str, name: str) -> None:
    """Make a container by a request that is signed with the account's key."""
    headers = {
        "x-ms-date": format_datetime(datetime.now(UTC), usegmt=True), "x-ms-version": API_VERSION,
    }  # fmt: skip
    signed = [
        "PUT", *[""] * LINES_OF_HEADERS, *(f"{each}:{headers[each]}" for each in sorted(headers)),
        f"/{ACCOUNT}/{ACCOUNT}/{name}", "restype:container",
    ]  # fmt: skip
    digest = hmac.new(base64.b64decode(KEY), "\n".join(signed).encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
    request = urllib.request.Request(
        f"{endpoint}/{name}?restype=container", method="PUT", headers=headers
    )
    with urllib.request.urlopen(request):
        pass
