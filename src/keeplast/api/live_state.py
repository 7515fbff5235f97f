"""``keeplast.LiveState``: the state of a topic, folded from records as a consumer receives them.

KIP-280 asks of consumers what it asks of the cleaner: to keep the record with the greatest rank of
each key, not the last one that comes. This is that rule for a process that reads a live topic. It
ends where ``state=latest`` and ``keeplast export`` end, whether the log was cleaned before it was
read or not.

What a reader must not break: records of a partition come in the order of their offsets, of a
consumer that reads committed records only. Which of them were aborted is not known here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from itertools import islice
from typing import Any

from msgspec import Struct

from keeplast.clock import time_text
from keeplast.errors import InvalidError, installing
from keeplast.format.record import header_version
from keeplast.model.partition import NO_TIMESTAMP
from keeplast.model.text import shown_bytes
from keeplast.model.topic_config import Strategy, TopicConfig

HTML_ROWS = 20
COLUMNS = ("partition", "offset", "timestamp", "key", "value", "headers")
Row = tuple[int | None, int, int, bytes | None, bytes | None, Sequence[tuple[bytes, bytes | None]]]
"""What :data:`COLUMNS` name; a time is in milliseconds since 1970, -1 without one."""


class ShownState(ABC):
    """A state as a notebook shows it and as tables; ``ranking`` says by what records ranked."""

    ranking: str

    @abstractmethod
    def _rows(self) -> Iterator[Row]:
        """Yield the records."""

    def to_arrow(self) -> Any:
        """Return the records as a ``pyarrow.Table``, a row a key, with the export's columns.

        InvalidError where pyarrow is missing.
        """
        try:
            from keeplast.pipeline.arrow_batches import state_table
        except ModuleNotFoundError as error:
            raise InvalidError(
                f"a table needs more packages; {installing('spark')}. missing={error.name}",
                code="K134",
            ) from error
        return state_table(COLUMNS, self._rows())

    def to_pandas(self) -> Any:
        """Return the records as a ``pandas.DataFrame``; InvalidError where pandas is missing."""
        try:
            return self.to_arrow().to_pandas()
        except ModuleNotFoundError as error:
            raise InvalidError(
                f"a data frame needs pandas; pip install pandas. missing={error.name}",
                code="K134",
            ) from error

    def _repr_html_(self) -> str:
        """Return the first records as a table, keys and values shortened and escaped."""
        rows = list(islice(self._rows(), HTML_ROWS + 1))
        cells = [
            (
                "" if row[0] is None else str(row[0]), str(row[1]),
                "" if row[2] == NO_TIMESTAMP else time_text(row[2]),
                shown_bytes(row[3]), shown_bytes(row[4]),
            )
            for row in rows[:HTML_ROWS]
        ]  # fmt: skip
        head = "".join(f"<th>{name}</th>" for name in COLUMNS[:5])
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in each)}</tr>" for each in cells
        )
        caption = f"Records of a key rank by {self.ranking}."
        more = f" The first {HTML_ROWS} are shown." if len(rows) > HTML_ROWS else ""
        return (
            f"<table><caption>{escape(caption + more)}</caption>"
            f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
        )


class LiveRecord(Struct, frozen=True):
    """The record that wins of a key; ``value`` None where it is a tombstone.

    ``version`` is what the topic's strategy ranks by, None without one or by offset.
    """

    partition: int
    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes | None
    version: int | None


class LiveState(Mapping[tuple[int, bytes], LiveRecord], ShownState):
    """The records of a topic that win and are no tombstones, by partition and key.

    A topic's partitions are compacted apart, so a key that was written to two of them is there
    twice. Memory is that of what stays; tombstones are kept too where versions decide, see
    :meth:`forget_tombstones`.
    """

    def __init__(self, topic: TopicConfig) -> None:
        """Begin with nothing read; ``topic`` says by what records are ranked."""
        self._strategy = topic.strategy
        self.ranking = topic.ranking
        """By what records rank, and who says so, in words."""
        self._header = (topic.strategy_header or "").encode()
        self._records: dict[tuple[int, bytes], LiveRecord] = {}
        self._tombstones: dict[tuple[int, bytes], LiveRecord] = {}
        self._next: dict[int, int] = {}

    @property
    def positions(self) -> Mapping[int, int]:
        """Return the offset that comes next, by partition: where a consumer goes on."""
        return dict(self._next)

    def apply(
        self,
        *,
        partition: int,
        offset: int,
        timestamp_ms: int,
        key: bytes | None,
        value: bytes | None,
        headers: Sequence[tuple[str | bytes, bytes | None]] | None = None,
    ) -> bool:
        """Take a record as it was received; say whether it is what its key now stands for.

        ``timestamp_ms`` is -1 without one; the name of a header is text, as clients give it, or
        bytes; headers None are none. A record below :attr:`positions` was taken before, as after a
        rebalance, and changes nothing; nor does one without a key, which is in no state.

        InvalidError, and nothing is taken, for a negative partition or offset, and for a key or
        value that is not bytes. A client's deserializer may make such values.
        """
        _require_place(partition, offset)
        # A key of another type is another key: its tombstone would leave what an export brought.
        for name, given in (("key", key), ("value", value)):
            if given is not None and not isinstance(given, bytes):
                raise InvalidError(
                    f"the {name} is not bytes; give it as the broker has it, without a "
                    f"deserializer. type={type(given).__name__} partition={partition} "
                    f"offset={offset}",
                    code="K109",
                )
        if offset < self._next.get(partition, 0):
            return False
        self._next[partition] = offset + 1
        if key is None:
            return False
        record = self.record(
            partition=partition, offset=offset, timestamp_ms=timestamp_ms, key=key, value=value,
            headers=headers,
        )  # fmt: skip
        return self._hold(record)

    def begin(self, partition: int, position: int, records: Iterable[LiveRecord]) -> None:
        """Take a partition's state of elsewhere, which reading at ``position`` goes on from.

        ``records`` are what :meth:`record` makes of it: of each key the record that wins, where
        versions rank tombstones too, and in any order. Some may lie at or above ``position``. Where
        a transaction was in flight, what comes there is read again, and what was in flight for the
        first time. :func:`keeplast.exported_state` begins with an export by this. InvalidError
        where something of the partition was taken before, and for a negative number.
        """
        _require_place(partition, position)
        if partition in self._next:
            raise InvalidError(
                "records of this partition were taken already; begin with a state that is empty. "
                f"partition={partition} position={self._next[partition]}",
                code="K109",
            )
        for record in records:
            self._hold(record)
        self._next[partition] = position

    def record(
        self,
        *,
        partition: int,
        offset: int,
        timestamp_ms: int,
        key: bytes,
        value: bytes | None,
        headers: Sequence[tuple[str | bytes, bytes | None]] | None = None,
    ) -> LiveRecord:
        """Return a record with the version that it ranks by here, and take nothing."""
        version = self._version(timestamp_ms, headers or ())
        return LiveRecord(partition, offset, timestamp_ms, key, value, version)

    def _hold(self, record: LiveRecord) -> bool:
        """Let a record be what its key stands for unless another one outranks it."""
        place = record.partition, record.key
        known = self._records.get(place) or self._tombstones.get(place)
        if known is not None and _rank(record) < _rank(known):
            return False
        self._records.pop(place, None)
        self._tombstones.pop(place, None)
        if record.value is not None:
            self._records[place] = record
        elif self._strategy is not Strategy.OFFSET:
            # What comes later may be older than this, and must not bring the key back.
            self._tombstones[place] = record
        return True

    def forget_tombstones(self, before_ms: int) -> int:
        """Forget tombstones with a timestamp below ``before_ms``; return how many those were.

        A record that is older than a forgotten one brings its key back, as in a log whose
        tombstones are gone. So choose a time that every producer has passed, such as
        ``delete.retention.ms`` ago. By offset none are kept.
        """
        old = [
            place for place, record in self._tombstones.items() if record.timestamp_ms < before_ms
        ]
        for place in old:
            del self._tombstones[place]
        return len(old)

    def __getitem__(self, place: tuple[int, bytes]) -> LiveRecord:
        """Return what stands for the key ``(partition, key)``; KeyError when nothing does."""
        return self._records[place]

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        """Yield the keys that are there, as (partition, key)."""
        return iter(self._records)

    def __len__(self) -> int:
        """Return how many keys are there."""
        return len(self._records)

    def _rows(self) -> Iterator[Row]:
        for each in self._records.values():
            yield each.partition, each.offset, each.timestamp_ms, each.key, each.value, ()

    def _version(
        self, timestamp_ms: int, headers: Sequence[tuple[str | bytes, bytes | None]]
    ) -> int | None:
        match self._strategy:
            case Strategy.OFFSET:
                return None
            case Strategy.TIMESTAMP:
                return None if timestamp_ms == NO_TIMESTAMP else timestamp_ms
            case Strategy.HEADER:
                named = [
                    (name.encode() if isinstance(name, str) else name, value)
                    for name, value in headers
                ]
                return header_version(named, self._header)


def _require_place(partition: int, offset: int) -> None:
    if partition < 0 or offset < 0:
        raise InvalidError(
            "partitions and offsets are not negative; give the record as the consumer has it. "
            f"partition={partition} offset={offset}",
            code="K109",
        )


def _rank(record: LiveRecord) -> tuple[bool, int, int]:
    return record.version is not None, record.version or 0, record.offset
