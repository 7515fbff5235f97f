"""Options that are not ours but come along: what Spark adds itself, and its Kafka source's.

Who moves a query from ``kafka`` to ``kafka-log`` brings that source's options. One that means
nothing here and changes no row is ignored; every other one is refused with what does it instead,
because a query that silently ignored it would read something else. Names are in lower case.

Sources: Spark's "Structured Streaming + Kafka Integration Guide"; ``TableCatalog`` for tables.
"""

from __future__ import annotations

IGNORED = frozenset({"includeheaders"})
"""Headers are a column of every query, and ``schema()`` leaves it out."""

PROVIDER = "provider"
LOCATION = "location"
MANAGED = "is_managed_location"
OF_TABLES = frozenset(
    {
        LOCATION,
        MANAGED,
        "collation",
        "comment",
        "external",
        "owner",
        PROVIDER,
        "serialization.format",
    }
)
"""What Spark hands over of a table that was made with ``CREATE TABLE … USING``."""

TABLE_OPTION = "option."
"""Begins the second copy of a table's options among its properties."""

_KAFKA_CLIENT = "kafka."
_BY_TIME = (
    "offsets are not found by time here; use {}, which compares the timestamp of each record, or "
    "give offsets"
)
_NO_GROUP = (
    "there is no consumer group, and a stream's offsets are in its checkpoint; leave the option out"
)
_NO_CLIENT = "files are read and no broker is asked; leave the option out"
REMOVED = {
    "filterpushdown": "Spark applies what filters one query pushes to other queries of the same "
    "DataFrame too; use assign, startingOffsets, endingOffsets, minTimestamp or maxTimestamp, and "
    "leave it out",
}
"""Options that earlier versions had, and what does it instead."""
_INSTEAD = {
    "kafka.bootstrap.servers": "files are read and no broker is asked; give load() the data "
    "directory, or bootstrapServers and storage, and leave the option out",
    "kafka.isolation.level": "use isolation.level",
    "kafka.group.id": _NO_GROUP,
    "groupidprefix": _NO_GROUP,
    "startingtimestamp": _BY_TIME.format("minTimestamp"),
    "startingoffsetsbytimestamp": _BY_TIME.format("minTimestamp"),
    "startingoffsetsbytimestampstrategy": _BY_TIME.format("minTimestamp"),
    "endingoffsetsbytimestamp": "use maxTimestamp, which compares the timestamp of each "
    "record, or endingTimestamp, which is about all partitions",
    "minoffsetspertrigger": "a stream does not wait for more; let its trigger run less often",
    "maxtriggerdelay": "a stream does not wait for more; let its trigger run less often",
    "maxrecordsperpartition": "use maxPartitionBytes, or minPartitions",
    "kafkaconsumer.polltimeoutms": _NO_CLIENT,
    "fetchoffset.numretries": _NO_CLIENT,
    "fetchoffset.retryintervalms": _NO_CLIENT,
    "topic": "nothing is written; use subscribe to read a topic",
}


def instead_of(name: str) -> str | None:
    """Return what does what an option of Spark's Kafka source does; None for any other name."""
    found = _INSTEAD.get(name)
    if found is None and name.startswith(_KAFKA_CLIENT):
        return _NO_CLIENT
    return found
