"""Random batches of every magic and codec, drawn by hypothesis, and how they are encoded."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st
from msgspec import Struct

from keeplast.format.batch import TimestampType, encode_batch
from keeplast.format.compression import Codec
from keeplast.format.record import Record
from keeplast.model.partition import INT64_MAX
from tests.support.legacy_sets import encode_message_set
from tests.support.partition_maker import NOW_MS

OLD_CODECS = (Codec.NONE, Codec.GZIP, Codec.SNAPPY, Codec.LZ4)
SUPERSEDED = b"x"
"""The key of which every drawn record goes."""


class Drawn(Struct, frozen=True):
    """A batch before it is encoded."""

    magic: int
    codec: Codec
    kind: TimestampType
    append_time: int
    records: tuple[Record, ...]
    before: int
    after: int
    producer_id: int
    leader_epoch: int

    def encode(self) -> bytes:
        """Encode the batch."""
        if self.magic < 2:
            return encode_message_set(
                self.records,
                magic=self.magic,
                codec=self.codec,
                timestamp_type=self.kind,
                append_timestamp=self.append_time,
            )
        return self.encode_records(self.records)

    def encode_records(self, records: Sequence[Record], **changes: Any) -> bytes:
        """Encode some of the records with the fields of the whole batch."""
        is_append_time = self.kind is TimestampType.LOG_APPEND_TIME
        has_producer = self.producer_id >= 0
        return encode_batch(
            records,
            base_offset=self.records[0].offset - self.before,
            last_offset=self.records[-1].offset + self.after,
            codec=self.codec,
            timestamp_type=self.kind,
            max_timestamp=self.append_time if is_append_time else None,
            leader_epoch=self.leader_epoch,
            producer_id=self.producer_id,
            producer_epoch=3 if has_producer else -1,
            base_sequence=17 if has_producer else -1,
            **changes,
        )


@st.composite
def drawn_batches(draw: st.DrawFn) -> list[Drawn]:
    """Draw up to six batches in offset order, of any magic, with gaps between and inside."""
    timestamps = st.one_of(
        st.just(-1), st.integers(NOW_MS, NOW_MS + 10**6), st.integers(-1, INT64_MAX)
    )
    keys = st.one_of(st.just(SUPERSEDED), st.binary(max_size=20), st.just(b"k" * 200), st.none())
    values = st.one_of(st.none(), st.binary(max_size=30), st.just(b"v" * 3000))
    headers = st.lists(
        st.tuples(st.binary(max_size=5), st.one_of(st.none(), st.binary(max_size=5))), max_size=3
    )
    offset = draw(st.sampled_from([0, 57]))
    batches: list[Drawn] = []
    for _ in range(draw(st.integers(1, 6))):
        magic = draw(st.sampled_from([2, 2, 2, 0, 1]))
        gaps = st.sampled_from([0, 0, 1, 5]) if magic == 2 else st.just(0)
        before, after = draw(gaps), draw(gaps)
        offset += before
        records = []
        for _ in range(draw(st.integers(1, 8))):
            records.append(
                Record(
                    offset,
                    draw(timestamps),
                    draw(keys),
                    draw(values),
                    tuple(draw(headers)) if magic == 2 else (),
                )
            )
            offset += draw(st.sampled_from([1, 1, 1, 2, 300]))
        offset += after
        kind = draw(st.sampled_from([TimestampType.CREATE_TIME, TimestampType.LOG_APPEND_TIME]))
        batches.append(
            Drawn(
                magic=magic,
                codec=draw(st.sampled_from(Codec if magic == 2 else OLD_CODECS)),
                kind=kind,
                append_time=draw(st.integers(0, 2**50)),
                records=tuple(records),
                before=before,
                after=after,
                producer_id=draw(st.sampled_from([-1, -1, 5, 2**62])),
                leader_epoch=draw(st.sampled_from([-1, 0, 2**31 - 1])),
            )
        )
    return batches
