"""Facts of a whole store or decision log: made at the first question, the same for all who ask.

What a reader must not break: a fact is never taken back. One is drawn once and stays, or it is only
ever raised to a greater text, so that two who raise it at once need not wait for each other.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import insert, select

from keeplast.errors import ConflictError, InvariantError
from keeplast.tier.metadata import schema
from keeplast.tier.metadata.rows import raise_fact
from keeplast.tier.metadata.transactions import Transactions

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
            query = select(schema.STORE.c.value).where(schema.STORE.c.key == key)
            found = connection.execute(query).scalar()
        return None if found is None else str(found)

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
                raise InvariantError(f"a fact that is there cannot be read. key={key}") from None
            return found
        return made

    def raise_to(self, anchor: Anchor) -> None:
        """Raise a fact that is there, in a transaction of its own; a lesser text changes nothing.

        CommitUnknownError when the answer is lost: it may be done twice.
        """
        with self._transactions.writing() as connection:
            raise_fact(connection, *anchor)
