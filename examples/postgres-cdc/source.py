"""The side of PostgreSQL: a publication, a slot, and a trigger that makes table rewrites visible.

What a reader must not break:

1. The slot moves by :meth:`Source.confirm` alone, and only when what it told is on stable storage.
2. Rows come whole (``REPLICA IDENTITY FULL``): without it an update leaves out large values that
   it did not touch, and nobody could tell what the row is.
3. Logical decoding says nothing of what ``ALTER TABLE`` does to rows. So an event trigger tells
   that a table was altered and updates every row of it, in the same transaction.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg import sql

from keeplast.errors import InvalidError, RefusedError
from keeplast.model.partition import TopicPartition

NAME = "keeplast_cdc"
"""Of the publication, the event trigger and the schema of its functions."""
POINT, REWRITE = "keeplast.point", "keeplast.rewrite"
"""What is told in the log: a name for a point; a table that was altered, and its key since."""
FETCHED, PEEKED = 1_000, 10_000
PRINTED = (
    "SET client_encoding = 'UTF8'; SET TimeZone = 'UTC'; SET DateStyle = 'ISO'; "
    "SET IntervalStyle = 'postgres'; SET extra_float_digits = 1; SET bytea_output = 'hex'; "
    "SET lock_timeout = '120s'"
)
"""How values are printed, so that a row is the same bytes whoever reads it. And whoever waits for a
lock on a table keeps others waiting behind him, which has an end."""
TRIGGER = f"""
CREATE SCHEMA {NAME};
CREATE FUNCTION {NAME}.key_of(asked oid) RETURNS text[] LANGUAGE sql STABLE
SET search_path = pg_catalog AS $$
  SELECT array_agg(attname::text ORDER BY place)
  FROM pg_index
  CROSS JOIN LATERAL unnest((indkey::int2[])[0:indnkeyatts - 1])
    WITH ORDINALITY AS part (number, place)
  JOIN pg_attribute ON attrelid = indrelid AND attnum = part.number
  -- A key that may be double for a moment cannot be followed change by change.
  WHERE indrelid = asked AND indisprimary AND indimmediate
$$;
CREATE FUNCTION {NAME}.send_again() RETURNS event_trigger LANGUAGE plpgsql SECURITY DEFINER
-- No trigger of the table's fires: nothing of it changes.
SET search_path = pg_catalog SET session_replication_role = replica AS $$
DECLARE
  altered record;
BEGIN
  FOR altered IN
    SELECT DISTINCT c.objid AS oid, c.objid::regclass::text AS name,
      {NAME}.key_of(c.objid) AS key,
      (SELECT attname FROM pg_attribute WHERE attrelid = c.objid AND attnum > 0
       AND NOT attisdropped AND attgenerated = '' AND attidentity <> 'a'
       ORDER BY attnum LIMIT 1) AS touched
    FROM pg_event_trigger_ddl_commands() AS c
    JOIN pg_publication_rel AS r ON r.prrelid = c.objid
    JOIN pg_publication AS p ON p.oid = r.prpubid
    WHERE p.pubname = '{NAME}' AND c.classid = 'pg_class'::regclass
  LOOP
    IF altered.key IS NULL OR altered.touched IS NULL THEN
      RAISE EXCEPTION '% is captured: it needs a primary key that is not deferrable, and a column '
        'that may be updated', altered.name;
    END IF;
    -- With a snapshot of earlier, rows of others would not be sent again.
    IF current_setting('transaction_isolation') <> 'read committed' THEN
      RAISE EXCEPTION '% is captured: alter it in a transaction of READ COMMITTED', altered.name;
    END IF;
    PERFORM pg_logical_emit_message(true, '{REWRITE}',
      json_build_object('table', altered.oid::bigint, 'key', altered.key)::text);
    EXECUTE format('UPDATE %s SET %I = %I', altered.name, altered.touched, altered.touched);
  END LOOP;
END $$;
CREATE EVENT TRIGGER {NAME} ON ddl_command_end WHEN TAG IN ('ALTER TABLE')
EXECUTE FUNCTION {NAME}.send_again();
"""
DESCRIBED = """
SELECT c.oid::bigint, n.nspname, c.relname, c.relkind = 'r'
    AND NOT EXISTS (SELECT FROM pg_inherits WHERE inhparent = c.oid)
    AND NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = c.oid AND attnum > 0
                    AND NOT attisdropped AND attgenerated <> ''),
  c.relreplident = 'f'
FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace WHERE c.oid = to_regclass(%s)
"""
Printed = dict[str, str | None]
"""A row, by column, as PostgreSQL prints it."""


def connect(url: str) -> psycopg.Connection:
    """Open a connection that commits each statement and prints values in the one way."""
    connection = psycopg.connect(url, autocommit=True)
    connection.execute(PRINTED)
    return connection


def printed_rows(cursor: psycopg.Cursor) -> list[Printed]:
    """Return the rows of a result as PostgreSQL printed them."""
    result = cursor.pgresult
    if result is None:
        return []
    names = [(result.fname(i) or b"").decode() for i in range(result.nfields)]
    return [
        {
            name: None if (value := result.get_value(row, i)) is None else bytes(value).decode()
            for i, name in enumerate(names)
        }
        for row in range(result.ntuples)
    ]


def lsn_number(text: str) -> int:
    """Return a log sequence number as a number: ``0/16B3748`` is one of 64 bits in two halves."""
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def lsn_text(number: int) -> str:
    """Return a log sequence number as PostgreSQL writes it."""
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"


class Source:
    """Captured tables, and the place up to which they were taken: the slot."""

    def __init__(self, connection: psycopg.Connection, tables: Sequence[str]) -> None:
        """Take tables of the connection's database; nothing need be prepared yet."""
        self._connection = connection
        self._asked = tables
        self.topics: dict[int, str] = {}
        """The topic of each table, ``schema.table``, by the table's number."""
        database, system = self._one(
            "SELECT oid::bigint, (SELECT system_identifier FROM pg_control_system()) "
            "FROM pg_database WHERE datname = current_database()"
        )
        self.identity = f"{system}/{database}"
        """Which database of which server it is: positions of another say nothing."""
        self._slot = f"{NAME}_{database}"

    def prepare(self) -> None:
        """Make what is missing of publication and trigger.

        InvalidError for a table that cannot be captured, and a server without logical decoding;
        RefusedError when others are captured already.
        """
        (level,) = self._one("SHOW wal_level")
        if level != "logical":
            raise InvalidError(
                "the server keeps no logical log; set wal_level = logical in postgresql.conf and "
                f"restart it. wal_level={level}"
            )
        (encoding,) = self._one("SHOW server_encoding")
        if encoding == "SQL_ASCII":
            raise InvalidError(
                "nobody knows what the bytes of texts mean in this database; JSON is UTF-8. Make "
                f"one with an encoding. server_encoding={encoding}"
            )
        if not self._exists("pg_event_trigger", "evtname", NAME):
            with self._connection.transaction():
                self._connection.execute(TRIGGER)
        for name in self._asked:
            self._add(name)
        self._publish()

    def make_slot(self) -> None:
        """Make the slot, if it is missing: from here on the server keeps its log for us."""
        if not self._exists("pg_replication_slots", "slot_name", self._slot):
            self._connection.execute(
                "SELECT pg_create_logical_replication_slot(%s, 'pgoutput')", [self._slot]
            )

    def _add(self, name: str) -> None:
        found = self._connection.execute(DESCRIBED, [name]).fetchone()
        if found is None:
            raise InvalidError(
                "no such table; name it with its schema, and one that was renamed is another one: "
                f"--drop, and capture it into another directory. table={name}"
            )
        number, schema, table, is_plain, is_full = found
        (key,) = self._one(f"SELECT {NAME}.key_of(%s::bigint::oid)", [number])
        if not is_plain or key is None or "." in schema + table:
            raise InvalidError(
                "a table is captured that has a primary key which is not deferrable, no generated "
                f"columns, no partitions, no heirs and no dot in its name. table={name}"
            )
        topic = TopicPartition(f"{schema}.{table}", 0).checked().topic
        if not is_full:
            self._connection.execute(
                sql.SQL("ALTER TABLE {} REPLICA IDENTITY FULL").format(_identifier(topic))
            )
        self.topics[number] = topic

    def _publish(self) -> None:
        if not self._exists("pg_publication", "pubname", NAME):
            tables = sql.SQL(", ").join(map(_identifier, self.topics.values()))
            self._connection.execute(
                sql.SQL("CREATE PUBLICATION {} FOR TABLE {}").format(sql.Identifier(NAME), tables)
            )
        rows = self._connection.execute(
            "SELECT prrelid::bigint FROM pg_publication_rel JOIN pg_publication AS p "
            "ON p.oid = prpubid WHERE pubname = %s",
            [NAME],
        )
        if {number for (number,) in rows} != self.topics.keys():
            raise RefusedError(
                "other tables of this database are captured already; name those, or --drop that "
                f"and capture all of them into another directory. tables={','.join(self._asked)}"
            )

    def drop(self) -> None:
        """Remove publication, trigger and slot; a slot that nobody reads fills the disk."""
        self._connection.execute(
            "SELECT pg_drop_replication_slot(slot_name) FROM pg_replication_slots "
            "WHERE slot_name = %s",
            [self._slot],
        )
        self._connection.execute(f"DROP PUBLICATION IF EXISTS {NAME}")
        self._connection.execute(f"DROP EVENT TRIGGER IF EXISTS {NAME}")
        self._connection.execute(f"DROP SCHEMA IF EXISTS {NAME} CASCADE")

    def confirmed(self) -> int:
        """Return up to where the slot was told that everything is on stable storage."""
        (lsn,) = self._one(
            "SELECT confirmed_flush_lsn FROM pg_replication_slots WHERE slot_name = %s",
            [self._slot],
        )
        return lsn_number(lsn)

    def written_to(self) -> int:
        """Return up to where the server has written its log."""
        (lsn,) = self._one("SELECT pg_current_wal_insert_lsn()")
        return lsn_number(lsn)

    def peek(self, end: int) -> list[bytes]:
        """Return messages of the next transactions that are committed below ``end``.

        Whole transactions, in the order of their commits; the slot stays where it is, so that they
        come again until they are confirmed.
        """
        rows = self._connection.execute(
            "SELECT data FROM pg_logical_slot_peek_binary_changes(%s, %s, %s, 'proto_version', "
            "'1', 'publication_names', %s, 'messages', 'true')",
            [self._slot, lsn_text(end), PEEKED, NAME],
        )
        return [bytes(data) for (data,) in rows]

    def confirm(self, lsn: int) -> None:
        """Let the server forget what is below ``lsn``."""
        self._connection.execute(
            "SELECT pg_replication_slot_advance(%s, %s)", [self._slot, lsn_text(lsn)]
        )

    def tell(self, point: str) -> None:
        """Tell of a point in the log, which comes as :func:`tell_point` says."""
        tell_point(self._connection, point)

    def key_of(self, topic: str) -> tuple[str, ...]:
        """Return the columns of a table's primary key, as it is now."""
        number = next(each for each, name in self.topics.items() if name == topic)
        (key,) = self._one(f"SELECT {NAME}.key_of(%s::bigint::oid)", [number])
        if key is None:
            raise InvalidError(f"the table has no primary key any more; give it one. table={topic}")
        return tuple(key)

    @contextmanager
    def snapshot(self) -> Iterator[tuple[int, int]]:
        """Open all tables as they are at one moment, for :meth:`rows`.

        Yields the position of the log behind everything that is visible, and the time of the
        moment in milliseconds since 1970. What is not visible comes by the slot.
        """
        tables = sql.SQL(", ").join(map(_identifier, self.topics.values()))
        with self._connection.transaction():
            # Who had begun to write before the slot was there has committed behind this.
            self._connection.execute(sql.SQL("LOCK TABLE {} IN SHARE MODE").format(tables))
        with self._connection.transaction():
            self._connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            # First the locks and then the snapshot: behind a rewrite an earlier one sees no row.
            self._connection.execute(sql.SQL("LOCK TABLE {} IN ACCESS SHARE MODE").format(tables))
            lsn, at_ms = self._one(
                "SELECT pg_current_wal_insert_lsn(), (extract(epoch FROM now()) * 1000)::bigint"
            )
            yield lsn_number(lsn), at_ms

    def rows(self, topic: str) -> Iterator[list[Printed]]:
        """Yield the rows of a table in the snapshot that is open, some at a time."""
        self._connection.execute(
            sql.SQL("DECLARE taken CURSOR FOR SELECT * FROM {}").format(_identifier(topic))
        )
        while found := printed_rows(self._connection.execute(f"FETCH {FETCHED} FROM taken")):
            yield found
        self._connection.execute("CLOSE taken")

    def _one(self, query: str, values: Sequence[object] = ()) -> tuple[Any, ...]:
        found = self._connection.execute(query, values or None).fetchone()
        if found is None:
            raise InvalidError(f"the server has no answer any more; run again. query={query!r}")
        return found

    def _exists(self, table: str, column: str, name: str) -> bool:
        query = f"SELECT EXISTS (SELECT FROM {table} WHERE {column} = %s)"
        return bool(self._one(query, [name])[0])


def tell_point(connection: psycopg.Connection, name: str) -> None:
    """Have the topics name their offsets at the commit of this transaction, under ``name``."""
    connection.execute("SELECT pg_logical_emit_message(true, %s, %s::text)", [POINT, name])


def altered(content: bytes) -> tuple[int, tuple[str, ...]]:
    """Return table and key columns of what the event trigger tells."""
    document = json.loads(content)
    return int(document["table"]), tuple(map(str, document["key"]))


def _identifier(topic: str) -> sql.Identifier:
    return sql.Identifier(*topic.split("."))
