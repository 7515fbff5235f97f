"""The rows that keep leases of partitions' leaders: one fact a partition.

What a reader must not break: a lease is written in the transaction that makes its leader one, and
renewed only by the leader epoch and the holder that the partition's row has. A renewal raises no
version: nothing that anybody decides by has changed.
"""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select

from keeplast.model.partition import TopicPartition
from keeplast.tier.metadata import schema
from keeplast.tier.metadata.transactions import Transactions
from keeplast.tier.state.lease import Lease, key_of


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
    query = select(schema.STORE.c.value).where(schema.STORE.c.key == key_of(row_id))
    found = connection.execute(query).scalar()
    return None if found is None else Lease.decode(str(found))
