"""Where kept folds of clusters' metadata topics lie: bytes by cluster and partition.

The rule: **it is a cache**. What cannot be written is not written, and whoever reads it holds it
against the cluster; to empty the table loses nothing.
"""

from __future__ import annotations

import contextlib

from sqlalchemy import delete as delete_rows
from sqlalchemy import insert, select

from keeplast.errors import CommitUnknownError, ConflictError, UnavailableError
from keeplast.tier.metadata import schema
from keeplast.tier.metadata.transactions import Transactions

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
