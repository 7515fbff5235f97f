"""SQLite databases of tests: nothing is flushed, and the tables of a new one are made at once.

The rule: **the tables are those that the migrations make.** They run once in a process; what they
left is a script, which a new database is given in the transaction in which the migrations would
run. A database that has any table is brought up to date by the migrations themselves, and so is one
of a test that has put another upgrade in their place.
"""

from __future__ import annotations

import sqlite3
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from alembic import command
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite

from keeplast.tier.metadata import database

migrate = database._upgrade
set_up = database._set_up_sqlite
upgrade = command.upgrade


@contextmanager
def quick_databases() -> Iterator[None]:
    """Let every database that this process opens meanwhile be a quick one."""
    script = _script()
    # Alembic compiles every migration each time that it is asked which there are.
    migrations = ScriptDirectory.from_config(database._config())
    compiled: dict[object, object] = {}
    read_once = SimpleNamespace(from_config=lambda config: migrations)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(database, "_upgrade", lambda connection: _upgrade(connection, script))
        patch.setattr(database, "_set_up_sqlite", _set_up)
        patch.setattr(database, "ScriptDirectory", read_once)
        # What one engine has compiled of a statement serves all.
        patch.setattr(SQLiteDialect_pysqlite, "__hash__", lambda dialect: 1)
        patch.setattr(SQLiteDialect_pysqlite, "__eq__", lambda one, other: type(one) is type(other))
        shared = property(lambda engine: compiled, lambda engine, own: None)
        patch.setattr(Engine, "_compiled_cache", shared, raising=False)
        yield


def _set_up(connection: Any, record: object) -> None:
    # Before, too: that the log is written ahead is a change of the file, which would be flushed.
    connection.execute("PRAGMA synchronous=OFF").close()
    set_up(connection, record)
    connection.execute("PRAGMA synchronous=OFF").close()


def _upgrade(connection: Connection, script: Sequence[str]) -> None:
    is_new = connection.dialect.name == "sqlite" and not _has_tables(connection)
    if not is_new or command.upgrade is not upgrade:
        migrate(connection)
        return
    for statement in script:
        connection.exec_driver_sql(statement)


def _has_tables(connection: Connection) -> bool:
    return connection.exec_driver_sql("SELECT 1 FROM sqlite_master").first() is not None


def _script() -> list[str]:
    """Return what makes the tables, of a database that the migrations made."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "migrated.db"
        database.open_database(f"sqlite:///{path}").dispose()
        with closing(sqlite3.connect(path)) as connection:
            script = list(connection.iterdump())
    # The transaction is the one that is open.
    return [each for each in script if each not in ("BEGIN TRANSACTION;", "COMMIT;")]
