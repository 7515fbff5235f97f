"""A v2 record batch: 61 bytes of header, then its records, compressed as one blob if at all.

    ===  ====  =====================================================================
    off  size  field
    ===  ====  =====================================================================
    0    8     base offset; kept when records are removed
    8    4     length: bytes after this field, at least 49
    12   4     partition leader epoch; outside the CRC
    16   1     magic, 2
    17   4     CRC-32C of bytes 21 to the end
    21   2     attributes, as below
    23   4     last offset delta; kept even when the last record is gone
    27   8     base timestamp, or the delete horizon when attribute bit 6 is set
    35   8     max timestamp; with LogAppendTime the timestamp of every record
    43   8     producer id
    51   2     producer epoch
    53   4     base sequence
    57   4     record count; 0 in a batch that cleaning has emptied
    61         records
    ===  ====  =====================================================================

Offset deltas ascend but have holes, so the count is never derived from offsets. Decoding a header
checks what is needed to stay inside the data, not the CRC: that is :attr:`RecordBatch.is_valid`.
Answers to ``DefaultRecordBatch`` and ``MemoryRecordsBuilder``; formats.md section 1.2, and
cleaning.md sections 3.7 and 3.8 for rebuilt and empty batches.

Of the attributes only the low byte of a v2 batch's 16-bit field means anything; Kafka loses bits 7
to 15 whenever it rewrites the header. Legacy messages have the same bits 0 to 3 in one byte.

    ====  =====================================================================
    bits  meaning
    ====  =====================================================================
    0-2   codec: 0 none, 1 gzip, 2 snappy, 3 lz4, 4 zstd; 5 to 7 are an error
    3     timestamp type: 0 CreateTime, 1 LogAppendTime
    4     transactional
    5     control batch
    6     delete horizon set: the base timestamp holds the horizon
    ====  =====================================================================

Answers to ``DefaultRecordBatch`` and ``LegacyRecord``; formats.md section 1.2.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from keeplast.errors import CorruptError, InvalidError
from keeplast.format.checksum import Buffer, crc32c
from keeplast.format.compression import Codec, compress, decompress
from keeplast.format.frames import DECOMPRESSED_BYTES_MAX
from keeplast.format.record import Record, decode_record, encode_record
from keeplast.model.partition import (
    INT32_MAX,
    NO_LEADER_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    increment_sequence,
    wrap_int64,
)

CODEC_MASK = 0x07
TIMESTAMP_TYPE_MASK = 0x08
TRANSACTIONAL_MASK = 0x10
CONTROL_MASK = 0x20
DELETE_HORIZON_MASK = 0x40


class TimestampType(IntEnum):
    """Who gave a record its timestamp; magic 0 has none."""

    NO_TIMESTAMP = -1
    CREATE_TIME = 0
    LOG_APPEND_TIME = 1


MAGIC = 2
HEADER_BYTES = 61
SIZE_PREFIX_BYTES = 12
"""Bytes of offset and length; a batch is that much longer than its length field says."""
CRC_START = 21

_HEADER = struct.Struct(
    ">q"  # base offset
    "i"  # length
    "i"  # partition leader epoch
    "b"  # magic
    "I"  # crc
    "h"  # attributes
    "i"  # last offset delta
    "q"  # base timestamp
    "q"  # max timestamp
    "q"  # producer id
    "h"  # producer epoch
    "i"  # base sequence
    "i"  # record count
)


@dataclass(frozen=True, slots=True)
class BatchHeader:
    """The fields of a header as they stand, and what follows from them.

    ``size_bytes`` is the whole batch. ``base_timestamp`` is the field: with a delete horizon set
    it is the horizon, see :attr:`delete_horizon_ms`.
    """

    base_offset: int
    size_bytes: int
    leader_epoch: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int

    @property
    def magic(self) -> int:
        """Always 2."""
        return MAGIC

    @property
    def last_offset(self) -> int:
        """Last offset that the batch covers, inclusive; no record need have it."""
        return wrap_int64(self.base_offset + self.last_offset_delta)

    @property
    def codec(self) -> Codec:
        """The codec; bits 5 to 7 raise :class:`CorruptError`."""
        return _codec(self.attributes, None)

    @property
    def timestamp_type(self) -> TimestampType:
        """Who gave the timestamps: producers, or the broker at the append (attribute bit 3)."""
        if self.attributes & TIMESTAMP_TYPE_MASK:
            return TimestampType.LOG_APPEND_TIME
        return TimestampType.CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        """True for data of a transaction, and for its marker."""
        return bool(self.attributes & TRANSACTIONAL_MASK)

    @property
    def is_control(self) -> bool:
        """True when the records are control records."""
        return bool(self.attributes & CONTROL_MASK)

    @property
    def delete_horizon_ms(self) -> int | None:
        """When tombstones and markers of this batch may go, or None while that is not set."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_MASK else None

    @property
    def last_sequence(self) -> int:
        """Sequence of the last offset; wraps from 2^31-1 to 0; -1 without sequences."""
        if self.base_sequence == NO_SEQUENCE:
            return NO_SEQUENCE
        return increment_sequence(self.base_sequence, self.last_offset_delta)


@dataclass(frozen=True, slots=True)
class RecordBatch(BatchHeader):
    """A batch and its bytes; ``position`` is where it starts in the file."""

    position: int = field(kw_only=True)
    data: memoryview = field(kw_only=True, repr=False)

    @property
    def codec(self) -> Codec:
        """As of the header; the error has the position."""
        return _codec(self.attributes, self.position)

    @property
    def is_valid(self) -> bool:
        """True when the CRC matches; reads the whole batch."""
        return self.computed_crc == self.crc

    @property
    def computed_crc(self) -> int:
        """The checksum that the bytes give; reads the whole batch."""
        return crc32c(self.data[CRC_START:])

    def payload(self) -> memoryview:
        """Return the records as stored, compressed if there is a codec."""
        return self.data[HEADER_BYTES:]

    def plain(self, *, limit: int = DECOMPRESSED_BYTES_MAX) -> Buffer:
        """Return the records as one run of bytes, decompressed; CorruptError as the codec says."""
        try:
            return decompress(self.codec, self.payload(), limit=limit)
        except CorruptError as error:
            raise error.placed(position=self.position) from None

    def records(self, *, limit: int = DECOMPRESSED_BYTES_MAX) -> Iterator[Record]:
        """Yield the records in offset order, control records too.

        With a count of 0 the payload is not looked at. Raises :class:`CorruptError` at the first
        record that is not well-formed and when bytes are left after the last. Its position is that
        of the record, or of the batch if the records are compressed.
        """
        if self.count == 0:
            return
        if self.count < 0:
            raise CorruptError(
                "negative record count",
                position=self.position,
                expected="0 or more",
                found=self.count,
                code="K215",
            )
        codec = self.codec
        data = self.plain(limit=limit)
        is_log_append_time = self.timestamp_type is TimestampType.LOG_APPEND_TIME
        at = 0
        for index in range(self.count):
            start = self.position if codec else self.position + HEADER_BYTES + at
            if at >= len(data):
                raise CorruptError(
                    "too few records in the batch",
                    position=start,
                    expected=self.count,
                    found=index,
                    code="K215",
                )
            try:
                record, at = decode_record(
                    data,
                    at,
                    base_offset=self.base_offset,
                    base_timestamp=self.base_timestamp,
                    append_timestamp=self.max_timestamp if is_log_append_time else None,
                )
            except CorruptError as error:
                raise error.placed(position=start) from None
            yield record
        if at != len(data):
            raise CorruptError(
                "bytes left after the last record",
                position=self.position if codec else self.position + HEADER_BYTES + at,
                expected="0 bytes",
                found=f"{len(data) - at} bytes",
                code="K215",
            )


def _codec(attributes: int, position: int | None) -> Codec:
    code = attributes & CODEC_MASK
    if code > Codec.ZSTD:
        raise CorruptError(
            "unknown codec",
            position=position,
            expected=f"0 to {Codec.ZSTD:d}",
            found=code,
            code="K216",
        )
    return Codec(code)


def decode_header(data: Buffer, position: int = 0) -> BatchHeader:
    """Return the header at ``position``; the records need not be there.

    Raises :class:`CorruptError` when fewer than 61 bytes are left, the magic is not 2 or the
    length is below that of a header.
    """
    return BatchHeader(*_header_fields(data, position, position))


def decode_batch(data: Buffer, position: int = 0, *, base_position: int = 0) -> RecordBatch:
    """Return the batch at ``position`` of ``data``, which must be there as a whole.

    ``base_position`` is where ``data`` starts in its file; errors and the batch give file
    positions.
    """
    fields = _header_fields(data, position, base_position + position)
    size_bytes = fields[1]
    body = memoryview(data)[position : position + size_bytes]
    if len(body) < size_bytes:
        raise CorruptError(
            "batch reaches past the end",
            position=base_position + position,
            expected=f"{size_bytes} bytes",
            found=f"{len(body)} bytes",
            code="K215",
        )
    return RecordBatch(*fields, position=base_position + position, data=body)


def _header_fields(data: Buffer, position: int, reported: int) -> tuple[int, ...]:
    if len(data) - position < HEADER_BYTES:
        raise CorruptError(
            "batch header cut",
            position=reported,
            expected=f"{HEADER_BYTES} bytes",
            found=f"{max(0, len(data) - position)} bytes",
            code="K215",
        )
    base_offset, length, leader_epoch, magic, *rest = _HEADER.unpack_from(data, position)
    if magic != MAGIC:
        raise CorruptError(
            "not a v2 batch", position=reported, expected=MAGIC, found=magic, code="K215"
        )
    if length < HEADER_BYTES - SIZE_PREFIX_BYTES:
        raise CorruptError(
            "batch length below that of a header",
            position=reported,
            expected=f"at least {HEADER_BYTES - SIZE_PREFIX_BYTES}",
            found=length,
            code="K215",
        )
    return base_offset, length + SIZE_PREFIX_BYTES, leader_epoch, *rest


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int | None = None,
    last_offset: int | None = None,
    codec: Codec = Codec.NONE,
    timestamp_type: TimestampType = TimestampType.CREATE_TIME,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    delete_horizon_ms: int | None = None,
    leader_epoch: int = NO_LEADER_EPOCH,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
) -> bytes:
    """Return a whole batch with a valid CRC.

    What is None is taken from the records as Kafka's builder takes it. Base offset and base
    timestamp come from the first, last offset from the last, the max timestamp from all. A delete
    horizon takes the place of the base timestamp, and deltas are relative to it. Without records
    ``base_offset`` is required and the payload is empty whatever the codec. Offsets must ascend;
    they need not be contiguous nor reach from base to last offset.
    """
    if base_offset is None:
        if not records:
            raise InvalidError("a batch without records needs a base offset", code="K161")
        base_offset = records[0].offset
    if last_offset is None:
        last_offset = records[-1].offset if records else base_offset
    _check_offsets(records, base_offset, last_offset)
    if max_timestamp is None:
        max_timestamp = max((record.timestamp for record in records), default=NO_TIMESTAMP)
    if delete_horizon_ms is not None:
        base_timestamp = delete_horizon_ms
    elif base_timestamp is None:
        base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    attributes = codec | (
        (TIMESTAMP_TYPE_MASK if timestamp_type is TimestampType.LOG_APPEND_TIME else 0)
        | (TRANSACTIONAL_MASK if is_transactional else 0)
        | (CONTROL_MASK if is_control else 0)
        | (DELETE_HORIZON_MASK if delete_horizon_ms is not None else 0)
    )
    plain = b"".join(
        encode_record(record, base_offset=base_offset, base_timestamp=base_timestamp)
        for record in records
    )
    return _encode(
        base_offset,
        leader_epoch,
        attributes,
        last_offset - base_offset,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
        compress(codec, plain) if records else b"",
    )


def encode_empty_batch(header: BatchHeader) -> bytes:
    """Return what cleaning leaves of a batch that retains no record, 61 bytes.

    The readable form of what the rebuilding kernel writes; tests bind the two.

    Offsets, leader epoch, producer fields, max timestamp and the timestamp-type, transactional
    and control bits stay; codec and delete horizon are cleared, the base timestamp becomes -1.
    """
    kept = TIMESTAMP_TYPE_MASK | TRANSACTIONAL_MASK | CONTROL_MASK
    return _encode(
        header.base_offset,
        header.leader_epoch,
        header.attributes & kept,
        header.last_offset_delta,
        NO_TIMESTAMP,
        header.max_timestamp,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
        0,
        b"",
    )


def _check_offsets(records: Sequence[Record], base_offset: int, last_offset: int) -> None:
    previous = base_offset - 1
    for record in records:
        if record.offset <= previous:
            raise InvalidError(
                f"offsets of a batch must ascend. offset={record.offset} previous={previous}",
                code="K161",
            )
        previous = record.offset
    if not max(previous, base_offset) <= last_offset <= base_offset + INT32_MAX:
        raise InvalidError(
            "last offset does not fit the batch. "
            f"last_offset={last_offset} base_offset={base_offset} last_record={previous}",
            code="K161",
        )


def _encode(
    base_offset: int,
    leader_epoch: int,
    attributes: int,
    last_offset_delta: int,
    base_timestamp: int,
    max_timestamp: int,
    producer_id: int,
    producer_epoch: int,
    base_sequence: int,
    count: int,
    payload: bytes,
) -> bytes:
    def header(crc: int) -> bytes:
        return _HEADER.pack(
            base_offset,
            HEADER_BYTES - SIZE_PREFIX_BYTES + len(payload),
            leader_epoch,
            MAGIC,
            crc,
            attributes,
            last_offset_delta,
            base_timestamp,
            max_timestamp,
            producer_id,
            producer_epoch,
            base_sequence,
            count,
        )

    return header(crc32c(payload, crc32c(header(0)[CRC_START:]))) + payload
