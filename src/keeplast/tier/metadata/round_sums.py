"""The rows that keep what rounds did by day: one fact a partition and day, for a month.

Written in the commit that moves the first dirty offset, while that holds the partition's row.
"""

from __future__ import annotations

from sqlalchemy import Connection, delete, insert, select, update

from keeplast.model.partition import TopicPartition
from keeplast.tier.metadata import schema
from keeplast.tier.state.round_days import (
    DAY_MS,
    DAYS_KEPT,
    PREFIX,
    KeptDay,
    RoundDay,
    RoundSums,
    key_of,
    parse_key,
    with_round,
)


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
    key = key_of(row_id, today)
    if key in kept:
        text = with_round(KeptDay.decode(kept[key]), host, done).encode()
        connection.execute(update(schema.STORE).where(schema.STORE.c.key == key).values(value=text))
    else:
        text = with_round(None, host, done).encode()
        connection.execute(insert(schema.STORE).values(key=key, value=text))


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
