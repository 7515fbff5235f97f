"""Opens the metadata store's database and brings its tables up to date.

SQLite keeps its changes in a write-ahead log that is flushed at every commit, and a transaction
that writes takes the lock when it begins, so that two processes wait for each other instead of
failing late. PostgreSQL locks the partition's row, and takes the lock from a host that has gone
silent in the middle of a transaction. Nothing else is supported: a database that does neither would
let two owners in.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, DBAPIError

from keeplast.errors import InvalidError, RefusedError, UnavailableError

MIGRATIONS = Path(__file__).with_name("migrations")
BUSY_SECONDS = 30
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


def open_database(url: str) -> Engine:
    """Return an engine whose tables are those of this version.

    InvalidError for a URL that is neither SQLite nor PostgreSQL, RefusedError for tables of a newer
    keeplast, UnavailableError when the database cannot be reached.
    """
    engine = _create(url)
    try:
        with engine.begin() as connection:
            if engine.dialect.name == "postgresql":
                # Of several hosts that open a new store at once, one makes the tables.
                connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
            script = ScriptDirectory.from_config(_config())
            known = {revision.revision for revision in script.walk_revisions()}
            current = MigrationContext.configure(connection).get_current_revision()
            if current is not None and current not in known:
                raise RefusedError(
                    "the metadata store was written by a newer keeplast; use that one. "
                    f"revision={current}"
                )
            config = _config()
            config.attributes["connection"] = connection
            command.upgrade(config, "head")
    except DBAPIError as error:
        engine.dispose()
        raise UnavailableError(
            "the metadata store cannot be opened; correct --store. "
            f"url={shown_url(url)} error={error.orig}"
        ) from error
    except RefusedError:
        engine.dispose()
        raise
    return engine


def is_missing(url: str) -> bool:
    """Say whether ``url`` names a SQLite file that is not there: opening it would make one."""
    try:
        parsed = make_url(url)
    except ArgumentError:
        return False
    name = parsed.database if parsed.get_backend_name() == "sqlite" else None
    return bool(name) and name != ":memory:" and not Path(str(name)).exists()


def shown_url(url: str) -> str:
    """Return a database's URL without its password, for people and files."""
    try:
        return make_url(url).render_as_string(hide_password=True)
    except ArgumentError:
        # What is no URL may still have been meant to have a password in it.
        return re.sub(r":[^:@]*@", ":***@", url)


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return config


def _create(url: str) -> Engine:
    try:
        parsed = make_url(url)
    except ArgumentError as error:
        raise InvalidError(
            f"not a database URL; give sqlite:///FILE or postgresql://... url={shown_url(url)}"
        ) from error
    if parsed.get_backend_name() == "sqlite":
        if parsed.database in (None, "", ":memory:"):
            raise InvalidError(
                f"the metadata store must outlive the process; name a file. url={url}"
            )
        engine = create_engine(parsed, connect_args={"timeout": BUSY_SECONDS})
        event.listen(engine, "connect", _set_up_sqlite)
        event.listen(engine, "begin", _begin_immediately)
        return engine
    if parsed.get_backend_name() == "postgresql":
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
        return create_engine(
            parsed, pool_size=POOL_SIZE, pool_pre_ping=True, isolation_level="READ COMMITTED",
            connect_args={"connect_timeout": BUSY_SECONDS, "options": limits},
        )  # fmt: skip
    raise InvalidError(
        "the metadata store is SQLite or PostgreSQL; others do not lock as it needs. "
        f"url={parsed.render_as_string(hide_password=True)}"
    )


def _set_up_sqlite(connection: Any, _record: object) -> None:
    # The driver must not begin transactions by itself, or they would begin without the lock.
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _begin_immediately(connection: Any) -> None:
    is_reading = connection.get_execution_options().get("is_reading", False)
    connection.exec_driver_sql("BEGIN" if is_reading else "BEGIN IMMEDIATE")
