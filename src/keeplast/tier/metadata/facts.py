"""Single rows next to the partitions: facts of a store, kept folds and texts, leases, sums by day.

What opens all tables of a store or of a decision log lies here too (:class:`OpenedTables`).

Each is changed under the lock of its own row; none decides what is live. What a reader must not
break, by kind:

- *Facts* of a whole store or decision log are made at the first question, the same for all who ask.
  A fact is never taken back. It is drawn once and stays, or it is only ever raised to a greater
  text. So two who raise it at once need not wait for each other.
- *Folds* of clusters' metadata topics are bytes by cluster and partition. They are **a cache**.
  What cannot be written is not written, and a reader compares it with the cluster; to empty the
  table loses nothing.
- *Texts* that are kept next to what a store is about have a key each, and one row. **Who changes a
  text sees what it replaces**: two who change it wait for each other.
- *Leases* of partitions' leaders are one fact a partition. A lease is written in the transaction
  that makes its leader one. Only the leader epoch and the holder that the partition's row has renew
  it. A renewal raises no version: it changes nothing that decides anything.
- *Sums* of what rounds did are one fact a partition and day, for a month. They are written in the
  commit that moves the first dirty offset, while that holds the partition's row.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from sqlalchemy import Connection, Engine, delete, insert, select
from sqlalchemy import delete as delete_rows

from keeplast.clock import Clock
from keeplast.errors import (
    CommitUnknownError,
    ConflictError,
    InvariantError,
    UnavailableError,
    retry_on,
)
from keeplast.model.partition import TopicPartition
from keeplast.tier.metadata import schema
from keeplast.tier.metadata.database import StoreClock, StoreTime
from keeplast.tier.metadata.fencing import Transactions
from keeplast.tier.metadata.hold_rows import HoldRows
from keeplast.tier.metadata.rows import raise_fact
from keeplast.tier.metadata.schema import find_fact, write_fact
from keeplast.tier.state.holder import Holder, Lease, key_of
from keeplast.tier.state.kept_rounds import (
    DAY_MS,
    DAYS_KEPT,
    PREFIX,
    KeptDay,
    RoundDay,
    RoundSums,
    parse_key,
    with_round,
)
from keeplast.tier.state.kept_rounds import key_of as key_of_day

Anchor = tuple[str, str]
"""A fact that is there, and the text that a commit raises it to: what is written down of the commit
elsewhere, by its hash."""


class Facts:
    """The facts of one opened store or decision log."""

    def __init__(self, transactions: Transactions) -> None:
        """Read and write by ``transactions``."""
        self._transactions = transactions

    @property
    def host(self) -> str:
        """Return the host of the process that makes facts here."""
        return self._transactions.holder.host

    def find(self, key: str) -> str | None:
        """Return the fact ``key``, None when it has not been made."""
        with self._transactions.reading() as connection:
            return find_fact(connection, key)

    def under(self, prefix: str, most: int) -> dict[str, str]:
        """Return the facts whose keys begin with ``prefix``, by key, the first ``most`` of them."""
        table = schema.STORE
        query = select(table.c.key, table.c.value).where(
            table.c.key.startswith(prefix, autoescape=True)
        )
        with self._transactions.reading() as connection:
            rows = connection.execute(query.order_by(table.c.key).limit(most)).all()
        return {str(key): str(value) for key, value in rows}

    def made(self, key: str, make: Callable[[], str]) -> str:
        """Return the fact ``key``; ``make`` gives it the first time that it is asked for."""
        found = self.find(key)
        if found is not None:
            return found
        made = make()
        try:
            with self._transactions.writing() as connection:
                connection.execute(insert(schema.STORE).values(key=key, value=made))
        except ConflictError:
            found = self.find(key)  # Somebody else was first.
            if found is None:
                raise InvariantError(
                    f"a fact that is there cannot be read. key={key}", code="K901"
                ) from None
            return found
        return made

    def raise_to(self, anchor: Anchor) -> None:
        """Raise a fact that is there, in a transaction of its own; a lesser text changes nothing.

        CommitUnknownError when the answer is lost: it may be done twice.
        """
        with self._transactions.writing() as connection:
            raise_fact(connection, *anchor)


_F = schema.FOLDS.c


class FoldRows:
    """The kept folds of one decision log, for several threads and hosts: the last one stays."""

    def __init__(self, transactions: Transactions) -> None:
        """Take the ways to change the store."""
        self._transactions = transactions

    def read(self, cluster_id: str, partition: int) -> bytes | None:
        """Return what was kept of a partition of the metadata topic, None for nothing."""
        query = select(_F.data).where(_F.cluster_id == cluster_id, _F.partition == partition)
        with self._transactions.reading() as connection:
            found = connection.execute(query).scalar()
        return None if found is None else bytes(found)

    def write(self, cluster_id: str, partition: int, data: bytes | None) -> None:
        """Keep ``data`` in the place of what was kept, None for nothing; or leave it, in a race."""
        with (
            contextlib.suppress(ConflictError, CommitUnknownError, UnavailableError),
            self._transactions.writing() as connection,
        ):
            connection.execute(
                delete_rows(schema.FOLDS).where(
                    _F.cluster_id == cluster_id, _F.partition == partition
                )
            )
            if data is not None:
                connection.execute(
                    insert(schema.FOLDS).values(
                        cluster_id=cluster_id, partition=partition, data=data
                    )
                )


ERASURES = "erasures"
"""The key of a store's erasure requests, and of those about attached topics."""
TRIES_MAX = 3


class KeptText:
    """The text of one key of a store."""

    def __init__(self, engine: Engine, clock: Clock, key: str) -> None:
        """Take an engine whose tables are there; see :mod:`keeplast.tier.metadata.database`."""
        self._transactions = Transactions(engine, clock)
        self._key = key

    def close(self) -> None:
        """Close every connection."""
        self._transactions.close()

    def read(self) -> str | None:
        """Return the text, None where there is none."""
        with self._transactions.reading() as connection:
            return find_fact(connection, self._key)

    def change(self, change: Callable[[str | None], str]) -> None:
        """Replace the text by what ``change`` makes of it; what that raises changes nothing.

        CommitUnknownError when the answer is lost: it may be done twice. ConflictError when others
        were faster each time.
        """
        # Another process may write the first one meanwhile.
        retry_on(ConflictError, TRIES_MAX, lambda: self._change(change))

    def _change(self, change: Callable[[str | None], str]) -> None:
        with self._transactions.writing() as connection:
            found = find_fact(connection, self._key, locks=True)
            write_fact(connection, self._key, change(found), is_new=found is None)


class Leases:
    """The leases of one opened store; see :attr:`.metadata_store.MetadataStore.leases`."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    def find(self, row_id: int) -> Lease | None:
        """Return the last lease of a partition's row, of whichever leader; None without one."""
        with self._transactions.reading() as connection:
            return _find(connection, row_id)

    def renew(
        self, partition: TopicPartition, *, epoch: int, lease_ms: int, acknowledged: int
    ) -> None:
        """Say that the leader at ``epoch``, which is this process, is alive.

        FencedError when it is the leader no more.
        """
        with self._transactions.ending(partition, epoch) as (connection, row):
            row_id, holder = int(row["id"]), str(row["holder"])
            known = _find(connection, row_id)
            if known is None or known.fence != (epoch, holder):
                known = Lease(epoch, holder, lease_ms, acknowledged)
            write_lease(connection, row_id, known.renewed(acknowledged))


def write_lease(connection: Connection, row_id: int, lease: Lease) -> None:
    """Keep a lease instead of the one before, while the partition's row is locked."""
    remove_lease(connection, row_id)
    connection.execute(insert(schema.STORE).values(key=key_of(row_id), value=lease.encode()))


def remove_lease(connection: Connection, row_id: int) -> None:
    """Keep none any more, as when the partition's row goes: numbers of rows may come back."""
    connection.execute(delete(schema.STORE).where(schema.STORE.c.key == key_of(row_id)))


def _find(connection: Connection, row_id: int) -> Lease | None:
    found = find_fact(connection, key_of(row_id))
    return None if found is None else Lease.decode(found)


def note_round(
    connection: Connection, row_id: int, host: str, done: RoundSums, *, now_ms: int
) -> None:
    """Add a round that ends at ``now_ms`` to its day, and forget the days of a month ago."""
    today = now_ms // DAY_MS
    found = connection.execute(
        select(schema.STORE.c.key, schema.STORE.c.value).where(
            schema.STORE.c.key.startswith(f"{PREFIX}{row_id}/", autoescape=True)
        )
    )
    kept = {str(key): str(value) for key, value in found}
    days = {key: parse_key(key) for key in kept}
    old = [key for key, at in days.items() if at is None or at[1] <= today - DAYS_KEPT]
    if old:
        connection.execute(delete(schema.STORE).where(schema.STORE.c.key.in_(old)))
    key = key_of_day(row_id, today)
    known = KeptDay.decode(kept[key]) if key in kept else None
    text = with_round(known, host, done).encode()
    write_fact(connection, key, text, is_new=key not in kept)


def read_round_days(connection: Connection) -> tuple[RoundDay, ...]:
    """Return all that is kept, by partition, day and host."""
    rows = connection.execute(
        select(schema.PARTITIONS.c.id, schema.PARTITIONS.c.topic, schema.PARTITIONS.c.partition)
    )
    names = {int(each[0]): TopicPartition(str(each[1]), int(each[2])) for each in rows}
    found = connection.execute(
        select(schema.STORE.c.key, schema.STORE.c.value).where(
            schema.STORE.c.key.startswith(PREFIX, autoescape=True)
        )
    )
    days = []
    for key, value in found:
        at, kept = parse_key(str(key)), KeptDay.decode(str(value))
        if at is not None and kept is not None and at[0] in names:
            days += [
                RoundDay(names[at[0]], at[1] * DAY_MS, host, sums)
                for host, sums in kept.hosts.items()
            ]
    return tuple(sorted(days, key=lambda each: (each.partition, each.day_ms, each.host)))


class OpenedTables:
    """What an opened store and an opened decision log have alike."""

    def __init__(
        self, engine: Engine, clock: Clock, holder: Holder | None = None,
        time: StoreTime | None = None,
    ) -> None:  # fmt: skip
        """Take an engine whose tables are there; see :mod:`keeplast.tier.metadata.database`.

        ``holder`` is the process that makes the changes of this object: this process, unless a test
        says otherwise. ``clock`` is the host's, ``time`` the store's.
        """
        self._transactions = Transactions(engine, clock, holder, time)

    @property
    def holder(self) -> Holder:
        """Return the process that makes the changes of this object."""
        return self._transactions.holder

    @property
    def clock(self) -> StoreClock:
        """Return the clock that decides what is removed by time."""
        return self._transactions.clock

    @property
    def facts(self) -> Facts:
        """Return what reads and makes facts of the whole store or decision log."""
        return Facts(self._transactions)

    @property
    def hold_rows(self) -> HoldRows:
        """Return what adds and releases holds, of stored partitions and of attached ones."""
        return HoldRows(self._transactions)

    def close(self) -> None:
        """Close every connection."""
        self._transactions.close()
