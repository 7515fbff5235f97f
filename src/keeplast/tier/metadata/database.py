"""The metadata's database: how it is opened and brought up to date, and the time that it gives.

SQLite keeps its changes in a write-ahead log that is flushed at every commit. A transaction that
writes takes the lock when it begins, so that two processes wait for each other instead of failing
late. PostgreSQL locks the partition's row, and takes the lock from a host that has gone silent in
the middle of a transaction. Nothing else is supported: a database that does neither would let two
owners in.

A store removes by one clock for all of its hosts, where the database has one. What a reader must
not break: all that is removed because time has passed asks :class:`StoreClock`, never a host's own
clock. That is expiry, tombstones and markers, lags, graces, garbage. On PostgreSQL the clock is the
server's. A host that differs from it removes nothing at all, because either of the two may be the
wrong one. SQLite has no clock but its host's, which counts as it does in a broker.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from keeplast.clock import Clock
from keeplast.errors import InvalidError, RefusedError, UnavailableError, installing, making
from keeplast.model.text import secrets_of, shown_url, without_secrets

MIGRATIONS = Path(__file__).with_name("migrations")
BUSY_SECONDS = 30
OWNERS, OTHERS = 0o600, 0o077
"""The rights of a SQLite file, and those that no other user may have."""
DRIVERS = ("sqlite", "sqlite+pysqlite", "postgresql", "postgresql+psycopg")
_UPGRADING, _MAKING = threading.Lock(), threading.Lock()
IDLE_SECONDS = 30
"""A host that is frozen in the middle of a transaction must not keep the others out for longer."""
LOCK_SECONDS = 60
POOL_SIZE = 5
MIGRATION_LOCK = 0x6B65_6570
READING: dict[str, dict[str, Any]] = {
    "sqlite": {"is_reading": True},
    "postgresql": {"isolation_level": "REPEATABLE READ", "postgresql_readonly": True},
}
"""Options of a connection that only reads: all of its transaction sees the same moment."""


def open_database(url: str, *, only_looks: bool = False) -> Engine:
    """Return an engine whose tables are those of this version.

    With ``only_looks`` nothing is made, no right is changed and no lock is taken. The database
    itself refuses to be written: a principal that may only read is enough. Tables of an older
    keeplast are refused then, as nothing brings them up to date.

    InvalidError for a URL that is neither SQLite nor PostgreSQL, RefusedError for tables of a newer
    keeplast, UnavailableError when the database cannot be reached.
    """
    engine = _create(url, only_looks=only_looks)
    try:
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql" and not only_looks:
                # Of several hosts that open a new store at once, one makes the tables.
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
            script = ScriptDirectory.from_config(_config())
            known = {revision.revision for revision in script.walk_revisions()}
            current = MigrationContext.configure(connection).get_current_revision()
            if current is not None and current not in known:
                raise RefusedError(
                    "the metadata store was written by a newer keeplast; use that one. "
                    f"revision={current}",
                    code="K322",
                )
            if current != script.get_current_head():
                if only_looks:
                    raise RefusedError(
                        "the tables of the metadata store are an older keeplast's. To look "
                        "changes nothing; a command that writes brings them up to date, such as "
                        f"keeplast copy or keeplast clean. revision={current}",
                        code="K322",
                    )
                _upgrade(connection)
    except (SQLAlchemyError, ValueError) as error:
        engine.dispose()
        words = " ".join(str(getattr(error, "orig", None) or error).split())
        # Not chained: a driver may quote what it could not use.
        raise UnavailableError(
            "the metadata store cannot be opened; correct its address. "
            f"url={shown_url(url)} error={without_secrets(words, secrets_of(url))}",
            code="K323",
        ) from None
    except BaseException:
        engine.dispose()
        raise
    return engine


def is_missing(url: str) -> bool:
    """Say whether ``url`` names a SQLite file that is not there.

    Opening it would make one, and could not open it where that is not allowed.
    """
    path = sqlite_path(url)
    return path is not None and not path.exists()


def exposed_mode(url: str) -> int | None:
    """Return the mode of a SQLite file that others than its owner can open, None when none can.

    The file holds the key with which filters hash; opening it takes others' rights away.
    """
    path = sqlite_path(url)
    try:
        mode = 0 if path is None else path.stat().st_mode
    except OSError:
        return None
    return stat.S_IMODE(mode) if stat.S_ISREG(mode) and mode & OTHERS else None


def parse_database_url(url: str) -> URL:
    """Return what ``url`` says; InvalidError, in which no secret stands, when it is no database's.

    Only the drivers that come with keeplast are taken: others lock, or fail, in their own ways.
    """
    try:
        parsed = make_url(url)
        parsed.normalized_query.items()
    except (ArgumentError, ValueError):
        # Not chained: what the library could not read may be a part of a password.
        raise InvalidError(
            "not a database URL; give sqlite:///FILE or postgresql://USER@HOST/DATABASE, and write "
            f"@ : / ? # % in a password as %40 %3A %2F %3F %23 %25. url={shown_url(url)}",
            code="K324",
        ) from None
    kind = parsed.drivername
    if kind not in DRIVERS:
        raise InvalidError(
            "the metadata store is SQLite or PostgreSQL, without another driver's name; others do "
            f"not lock as it needs. url={shown_url(url)}",
            code="K324",
        )
    if "@" in (parsed.host or "") or any(not char.isprintable() for char in url):
        raise InvalidError(
            "what stands before the host of the URL is not readable; write @ : / ? # % in a "
            f"password as %40 %3A %2F %3F %23 %25. url={shown_url(url)}",
            code="K324",
        )
    if parsed.get_backend_name() == "sqlite":
        if parsed.host or parsed.port or parsed.username or parsed.password:
            raise InvalidError(
                "the metadata store is a file of this host; name it: sqlite:///FILE. "
                f"url={shown_url(url)}",
                code="K324",
            )
        name = parsed.database or ""
        if name in ("", ":memory:") or name.startswith("file:"):
            raise InvalidError(
                "the metadata store must outlive the process; name a file: sqlite:///FILE. "
                f"url={shown_url(url)}",
                code="K324",
            )
    return parsed


def sqlite_path(url: str) -> Path | None:
    """Return the file of a SQLite database, None for another; InvalidError for another URL."""
    return _sqlite_path(parse_database_url(url))


def _sqlite_path(parsed: URL) -> Path | None:
    return Path(str(parsed.database)) if parsed.get_backend_name() == "sqlite" else None


def _make_private(path: Path) -> None:
    """Make a SQLite file that only its owner can open, or take others' rights from an old one.

    A new file has these rights from its first byte on; SQLite gives its -wal and -shm the same
    ones.

    What cannot be done is left to SQLite, which says why it cannot open the file. A file of another
    user, who alone can do it, is left as it is.
    """
    # A file that may be open is never opened here: to close it anywhere in a process gives up all
    # locks that the process has on it. A new one has no locks yet, while the others wait.
    with _MAKING, contextlib.suppress(OSError):
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, OWNERS))
    for each in (path, *(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))):
        with contextlib.suppress(OSError):
            mode = each.stat().st_mode
            # A directory of that name is no store: other users who work in it keep their rights.
            if stat.S_ISREG(mode) and mode & OTHERS:
                each.chmod(stat.S_IMODE(mode) & ~OTHERS)


def _upgrade(connection: Connection) -> None:
    # What runs a migration is a variable of alembic's module: one thread at a time has it.
    with _UPGRADING:
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "head")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config


def _create(url: str, *, only_looks: bool) -> Engine:
    parsed = parse_database_url(url)
    path = _sqlite_path(parsed)
    if path is not None:
        if not path.parent.is_dir():
            raise InvalidError(
                f"there is no directory for the metadata store; {making(path.parent)}, or correct "
                f"the address. url={shown_url(url)}",
                code="K111",
            )
        if not only_looks:
            _make_private(path)
        elif not path.exists():
            raise InvalidError(
                f"there is no such metadata store. url={shown_url(url)}", code="K320"
            )
        engine = create_engine(parsed, connect_args={"timeout": BUSY_SECONDS})
        event.listen(engine, "connect", _only_look_at_sqlite if only_looks else _set_up_sqlite)
        event.listen(engine, "begin", _begin_reading if only_looks else _begin_immediately)
        return engine
    if parsed.drivername == "postgresql":
        parsed = parsed.set(drivername="postgresql+psycopg")
    # The server ends what its client does not; what the URL says comes later and wins.
    limits = (
        f"-c idle_in_transaction_session_timeout={IDLE_SECONDS}s "
        f"-c lock_timeout={LOCK_SECONDS}s -c tcp_keepalives_idle={IDLE_SECONDS}"
    )
    for chosen in parsed.normalized_query.get("options", ()):
        limits += f" {chosen}"
    parsed = parsed.difference_update_query(["options"])
    try:
        return create_engine(
            parsed, pool_size=POOL_SIZE, pool_pre_ping=True, isolation_level="READ COMMITTED",
            connect_args={"connect_timeout": BUSY_SECONDS, "options": limits},
            # Said of each transaction: what a session defaults to, the driver says otherwise.
            execution_options={"postgresql_readonly": only_looks},
        )  # fmt: skip
    except ImportError as error:
        raise InvalidError(
            f"PostgreSQL needs its driver; {installing('tier')}. "
            f"url={shown_url(url)} missing={error.name}",
            code="K134",
        ) from error
    except (ArgumentError, ValueError, TypeError):
        raise InvalidError(
            f"hosts, ports and options of the URL do not fit together. url={shown_url(url)}",
            code="K324",
        ) from None


def _set_up_sqlite(connection: Any, _record: object) -> None:
    # The driver must not begin transactions by itself, or they would begin without the lock.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _only_look_at_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    connection.execute("PRAGMA query_only=ON").close()


def _begin_reading(connection: Any) -> None:
    connection.exec_driver_sql("BEGIN")


def _begin_immediately(connection: Any) -> None:
    is_reading = connection.get_execution_options().get("is_reading", False)
    connection.exec_driver_sql("BEGIN" if is_reading else "BEGIN IMMEDIATE")


SKEW_MS_MAX = 5 * 60 * 1000
"""Hosts that keep their clocks differ by milliseconds; one that does not is off by far more."""
_NOW = text("SELECT CAST(extract(epoch FROM clock_timestamp()) * 1000 AS bigint)")

Reading = Callable[[], AbstractContextManager[Connection]]


class StoreTime(Protocol):
    """Gives the time of a store within a transaction."""

    is_shared: bool
    """Whether all hosts of the store get the same time."""

    def now_ms(self, connection: Connection) -> int:
        """Return milliseconds since the Unix epoch."""


class ServerTime:
    """PostgreSQL's own clock."""

    is_shared = True

    def now_ms(self, connection: Connection) -> int:
        """Ask the server: the time of the moment, not of the transaction's begin."""
        return int(connection.execute(_NOW).scalar_one())


class HostTime:
    """The clock of the asking host."""

    is_shared = False

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def now_ms(self, connection: Connection) -> int:
        """Look at the clock."""
        return self._clock.now_ms()


def time_of(engine: Engine, clock: Clock) -> StoreTime:
    """Return the source of the time of a store in this database; ``clock`` is the host's."""
    return ServerTime() if engine.dialect.name == "postgresql" else HostTime(clock)


class StoreClock:
    """A :class:`~keeplast.clock.Clock` whose time is the store's."""

    def __init__(self, time: StoreTime, host: Clock, reading: Reading) -> None:
        """``reading`` opens a transaction in which ``time`` is asked."""
        self._time = time
        self._host = host
        self._reading = reading

    def now_ms(self) -> int:
        """Return the store's time; UnavailableError when the host's differs by too much.

        What the question took is no difference: the time must lie outside of all of it.
        """
        if not self._time.is_shared:
            return self._host.now_ms()
        with self._reading() as connection:
            return self.now_in(connection)

    def now_in(self, connection: Connection) -> int:
        """Return the same, or refuse the same, within a transaction of one's own."""
        before = self._host.now_ms()
        found = self._time.now_ms(connection)
        after = self._host.now_ms()
        ahead_ms = before - found if before > found else min(after - found, 0)
        if abs(ahead_ms) > SKEW_MS_MAX:
            raise UnavailableError(
                "this host's clock and the metadata store's differ, so nothing is removed; set the "
                f"clock that is wrong. host_ms={before} store_ms={found} "
                f"ahead_seconds={ahead_ms / 1000:.0f} seconds_max={SKEW_MS_MAX // 1000}",
                code="K325",
            )
        return found

    def seconds(self) -> float:
        """Return the host's monotonic seconds."""
        return self._host.seconds()

    def sleep(self, seconds: float) -> None:
        """Wait on the host."""
        self._host.sleep(seconds)
