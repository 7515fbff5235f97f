"""Real servers for the tier: PostgreSQL, an S3 gateway, and Azurite, started here, ended by their
own id.

The gateway is versitygw with its posix backend; ``make test-services`` builds it into
``build/bin``, and installs Azurite. Of Google's store there is only a stand-in of ours
(:mod:`tests.support.google_store`), which proves less.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.azurite_server import own_azurite
from tests.support.google_store import own_google_store
from tests.support.ports import free_port
from tests.support.postgresql_server import own_postgresql, stop_process
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", help="how long the soak takes (20 seconds unless told)")
    parser.addoption("--seed", help="what happens in the soak (1 unless told)")


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    wait_until(answers, by=lambda: process.poll() is None, told=lambda: str(process.args))


@pytest.fixture(scope="session")
def postgresql() -> Iterator[str]:
    """A PostgreSQL server of our own; the URL of its maintenance database."""
    with own_postgresql() as url:
        yield url


@pytest.fixture(scope="session")
def new_database(postgresql: str) -> Callable[[], str]:
    """Makes an empty database and returns its URL."""
    import psycopg

    def make() -> str:
        name = f"k{secrets.token_hex(6)}"
        with psycopg.connect(postgresql, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
        return postgresql.rsplit("/", 1)[0] + f"/{name}"

    return make


@pytest.fixture
def database(new_database: Callable[[], str]) -> str:
    """The URL of a new, empty database."""
    return new_database()


@dataclass(frozen=True, slots=True)
class S3:
    """A bucket of an object store, mostly of S3, and what opens it."""

    url: str
    options: dict[str, str]


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """A versitygw over a directory; ``url`` has no bucket yet."""
    binary = shutil.which("versitygw") or str(ROOT / "build" / "bin" / "versitygw")
    if not Path(binary).exists():
        raise RuntimeError("versitygw is needed: make test-services builds it")
    directory = tmp_path_factory.mktemp("s3")
    port, access, secret = free_port(), "keeplast", secrets.token_hex(16)
    process = subprocess.Popen(
        [binary, "--port", f"127.0.0.1:{port}", "posix", str(directory)],
        env={**os.environ, "ROOT_ACCESS_KEY": access, "ROOT_SECRET_KEY": secret},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    options = {
        "endpoint": f"http://127.0.0.1:{port}", "access_key_id": access,
        "secret_access_key": secret, "region": "us-east-1",
    }  # fmt: skip
    try:
        wait_for(port, process)
        (directory / "logs").mkdir(exist_ok=True)
        yield S3("s3://logs", options)
    finally:
        stop_process(process, signal.SIGTERM)


@pytest.fixture(scope="session")
def azure_server() -> Iterator[S3]:
    """An Azurite with an empty container."""
    with own_azurite("logs") as options:
        yield S3("az://logs", options)


@pytest.fixture(scope="session")
def google_server() -> Iterator[S3]:
    """The stand-in for Google's store, with an empty bucket."""
    with own_google_store("logs") as store:
        yield S3("gs://logs", store.options)


@pytest.fixture
def s3(s3_server: S3) -> S3:
    """A prefix of our own in the bucket."""
    return S3(f"{s3_server.url}/{secrets.token_hex(6)}", s3_server.options)
