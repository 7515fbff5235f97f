"""Real servers for the tier: PostgreSQL, an S3 gateway, and Azurite, started here, ended by their
own id.

The gateway is versitygw with its posix backend; ``make test-services`` builds it into
``build/bin``, and installs Azurite. Of Google's store there is only a stand-in of ours
(:mod:`tests.support.google_store`), which proves less.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator

import pytest
from msgspec import Struct

from keeplast.tier.metadata.database import HostTime
from tests.support.azurite_server import own_azurite
from tests.support.google_store import own_google_store
from tests.support.postgresql_server import own_postgresql
from tests.support.s3_server import own_s3


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--minutes", help="how long the soak takes (20 seconds by default)")
    parser.addoption("--seed", help="what happens in the soak (1 by default)")


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


@pytest.fixture
def by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time is moved by hand, unless a store is given another one."""
    monkeypatch.setattr("keeplast.tier.metadata.fencing.time_of", lambda _, clock: HostTime(clock))


class S3(Struct, frozen=True):
    """A bucket of an object store, mostly of S3, and what opens it."""

    url: str
    options: dict[str, str]


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3]:
    """A versitygw over a directory; ``url`` has no bucket yet."""
    with own_s3(tmp_path_factory.mktemp("s3"), "logs") as options:
        yield S3("s3://logs", options)


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
