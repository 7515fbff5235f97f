"""A text that is kept beside what a store is about, by its key: one row, changed under its lock.

The rule: **whoever changes it sees what he replaces**. Two who change it wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import Engine, insert, select, update

from keeplast.clock import Clock
from keeplast.errors import ConflictError
from keeplast.tier.metadata import schema
from keeplast.tier.metadata.transactions import Transactions

ERASURES = "erasures"
"""The key of a store's erasure requests, and of those about attached topics."""
TRIES_MAX = 3


class KeptText:
    """The text of one key of a store."""

    def __init__(self, engine: Engine, clock: Clock, key: str) -> None:
        """Take an engine whose tables are there; see :mod:`keeplast.tier.metadata.database`."""
        self._transactions = Transactions(engine, clock)
        self._key = key
        self._query = select(schema.STORE.c.value).where(schema.STORE.c.key == key)

    def close(self) -> None:
        """Close every connection."""
        self._transactions.close()

    def read(self) -> str | None:
        """Return the text, None where there is none."""
        with self._transactions.reading() as connection:
            found = connection.execute(self._query).scalar()
        return None if found is None else str(found)

    def change(self, change: Callable[[str | None], str]) -> None:
        """Replace the text by what ``change`` makes of it; what that raises changes nothing.

        CommitUnknownError when the answer is lost: it may be done twice. ConflictError when others
        were faster each time.
        """
        for tried in range(1, TRIES_MAX + 1):
            try:
                with self._transactions.writing() as connection:
                    found = connection.execute(self._query.with_for_update()).scalar()
                    text = change(None if found is None else str(found))
                    table = schema.STORE
                    connection.execute(
                        insert(table).values(key=self._key, value=text)
                        if found is None
                        else update(table).where(table.c.key == self._key).values(value=text)
                    )
                return
            except ConflictError:
                if tried == TRIES_MAX:
                    raise
                # Somebody else wrote the first one meanwhile.
