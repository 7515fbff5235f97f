"""The attribute bits of batches and legacy messages.

Only the low byte of a v2 batch's 16-bit field means anything; Kafka loses bits 7 to 15 whenever it
rewrites the header. Legacy messages have the same bits 0 to 3 in one byte.

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

from enum import IntEnum

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
