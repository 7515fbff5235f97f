"""URLs of the metadata store: what cannot be used is said in a line, and no secret with it."""

from __future__ import annotations

import os
import stat
import threading
import traceback
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy.exc import OperationalError

from keeplast.errors import InvalidError, RefusedError, UnavailableError
from keeplast.tier.metadata.database import _make_private, exposed_mode, is_missing, open_database
from tests.support.waiting import SECONDS_MAX, run_at_once

SECRET = "s3cret"
NO_SERVER = "127.0.0.1:1"
"""Port 1 of this host: nothing listens."""


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("postgresql://u:s3cret@h:notaport/db", InvalidError),
        ("postgresql://u:s3cret@[::1/db", InvalidError),
        ("postgresql://u:p@s3cret@127.0.0.1:1/db", InvalidError),
        ("postgresql://u:s3cret\n@h/db", InvalidError),
        ("postgresql+asyncpg://u:s3cret@h/db", InvalidError),
        ("postgresql+psycopg2://u:s3cret@h/db", InvalidError),
        ("mysql://u:s3cret@h/db", InvalidError),
        ("sqlite+aiosqlite:///x.db?key=s3cret", InvalidError),
        ("postgres:u:s3cret@h/db", InvalidError),
        ("s3cret:foo@bar", InvalidError),
        ("sqlite:///\x00@", InvalidError),
        ("sqlite://u:s3cret@h/x.db", InvalidError),
        (f"postgresql:// u:s3cret@{NO_SERVER}/db", UnavailableError),
        (f"postgresql://{NO_SERVER}/db?password=s3cret", UnavailableError),
        (f"postgresql://u:%733cret@{NO_SERVER}/db?nonsense=s3cret", UnavailableError),
        (f"postgresql://{NO_SERVER}/db?p%61ssword=s3cret&nonsense=1", UnavailableError),
        (f"postgresql://{NO_SERVER}/db?sslpassword=s3cret", UnavailableError),
        ("postgresql:///db?host=127.0.0.1&port=1&port=2&passfile=s3cret", InvalidError),
    ],
)
def test_a_url_that_cannot_be_used_is_one_line_without_a_secret(
    url: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind) as caught:
        open_database(url)
    text = str(caught.value)
    assert SECRET not in text
    assert "\n" not in text
    assert ". url=" in text or " url=" in text


def test_nor_does_it_stand_in_a_traceback() -> None:
    try:
        open_database(f"postgresql://u:{SECRET}@{NO_SERVER}/db?sslpassword=other{SECRET}")
    except UnavailableError as error:
        found = "".join(traceback.format_exception(error))
    assert "metadata store cannot be opened" in found
    # The line above is a part of it, in which the password is a name.
    assert SECRET not in found


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "sqlite:///file:x?uri=true"])
def test_a_store_that_is_no_file_is_refused(url: str) -> None:
    with pytest.raises(InvalidError, match="name a file"):
        is_missing(url)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_sqlite_file_is_its_owners_alone_from_its_first_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, opened = tmp_path / "meta.db", os.open
    modes: list[int] = []

    def noting(name: object, flags: int, mode: int = 0o777, **named: int) -> int:
        handle = opened(name, flags, mode, **named)  # type: ignore[arg-type]
        if str(name) == str(path):
            modes.append(mode_of(path))
        return handle

    monkeypatch.setattr(os, "open", noting)
    before = os.umask(0)
    try:
        engine = open_database(f"sqlite:///{path}")
        with engine.begin() as connection:
            connection.exec_driver_sql("INSERT INTO store VALUES ('a', 'b')")
            found = {each.name: mode_of(each) for each in tmp_path.iterdir()}
            # To close a file that is there gives up the process's locks on it: it is not opened.
            _make_private(path)
        engine.dispose()
        open_database(f"sqlite:///{path}").dispose()
    finally:
        os.umask(before)
    assert [0o600] == modes
    assert {"meta.db": 0o600, "meta.db-wal": 0o600, "meta.db-shm": 0o600} == found


def test_others_lose_their_rights_in_a_file_that_is_there(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    url = f"sqlite:///{path}"
    open_database(url).dispose()
    assert exposed_mode(url) is None
    path.chmod(0o664)
    assert exposed_mode(url) == 0o664
    open_database(url).dispose()
    assert (0o600, None) == (mode_of(path), exposed_mode(url))
    assert exposed_mode("postgresql://host/db") is None


def test_a_look_takes_no_right_and_no_lock_and_cannot_write(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    url = f"sqlite:///{path}"
    writer = open_database(url)
    path.chmod(0o644)
    with writer.connect() as writing:
        writing.exec_driver_sql("INSERT INTO store VALUES ('a', 'b')")
        # The writer holds the lock, and what it has not committed is not there.
        engine = open_database(url, only_looks=True)
        with engine.connect() as connection:
            assert [] == connection.exec_driver_sql("SELECT * FROM store").all()
        with engine.connect() as connection, pytest.raises(OperationalError, match="readonly"):
            connection.exec_driver_sql("INSERT INTO store VALUES ('c', 'd')")
        engine.dispose()
    writer.dispose()
    assert 0o644 == mode_of(path)


def test_a_look_makes_no_store_and_no_tables(tmp_path: Path) -> None:
    path = tmp_path / "meta.db"
    with pytest.raises(InvalidError, match="no such metadata store"):
        open_database(f"sqlite:///{path}", only_looks=True)
    assert not path.exists()
    path.touch()
    with pytest.raises(RefusedError, match="older keeplast"):
        open_database(f"sqlite:///{path}", only_looks=True)
    assert b"" == path.read_bytes()


def test_threads_open_stores_at_once(tmp_path: Path) -> None:
    """Some the same one, some others: the tables are made once each."""
    start, failed = threading.Barrier(8, timeout=SECONDS_MAX), list[BaseException]()

    def run(number: int) -> None:
        try:
            start.wait()
            open_database(f"sqlite:///{tmp_path / f'meta-{number % 4}.db'}").dispose()
        except BaseException as error:  # noqa: BLE001 - handed to the test
            failed.append(error)

    run_at_once(partial(run, number) for number in range(8))
    assert [] == failed


def test_a_directory_keeps_the_rights_of_others(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.mkdir(mode=0o755)
    path.chmod(0o755)
    with pytest.raises(UnavailableError):
        open_database(f"sqlite:///{path}")
    assert (0o755, None) == (mode_of(path), exposed_mode(f"sqlite:///{path}"))
