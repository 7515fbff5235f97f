"""Facts of a whole store or decision log: made at the first question, the same for all who ask."""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy import insert, select

from keeplast.errors import ConflictError, InvariantError
from keeplast.tier.metadata import schema
from keeplast.tier.metadata.transactions import Transactions


def find_fact(transactions: Transactions, key: str) -> str | None:
    """Return the fact ``key``, None when it has not been made."""
    with transactions.reading() as connection:
        query = select(schema.STORE.c.value).where(schema.STORE.c.key == key)
        found = connection.execute(query).scalar()
    return None if found is None else str(found)


def made_fact(transactions: Transactions, key: str, make: Callable[[], str]) -> str:
    """Return the fact ``key``; ``make`` gives it the first time that it is asked for."""
    found = find_fact(transactions, key)
    if found is not None:
        return found
    made = make()
    try:
        with transactions.writing() as connection:
            connection.execute(insert(schema.STORE).values(key=key, value=made))
    except ConflictError:
        found = find_fact(transactions, key)  # Somebody else was first.
        if found is None:
            raise InvariantError(f"a fact that is there cannot be read. key={key}") from None
        return found
    return made
