"""Batches that Kafka's own cleaner rebuilt are written again byte for byte.

Answers to F8 of cleaning-findings.md: gzip, lz4 and zstd always give Kafka's bytes, snappy gives
them where the block compressors agree.
"""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from keeplast.errors import CorruptError
from keeplast.format.batch import RecordBatch, encode_batch, encode_empty_batch
from keeplast.format.compression import Codec, compress, decompress
from keeplast.format.message_set import Batch, read_batches
from tests.support.existing import existing

ARCHIVE = Path(__file__).parents[2] / "golden" / "fixtures.tar.xz"
REBUILT_MIN = {Codec.NONE: 300, Codec.GZIP: 150, Codec.LZ4: 80, Codec.ZSTD: 150, Codec.SNAPPY: 150}


def whole_batches(data: bytes) -> Iterator[Batch]:
    """Yield batches up to the first damage; some cases are damaged on purpose."""
    try:
        yield from read_batches(data)
    except CorruptError:
        return


@pytest.fixture(scope="module")
def rebuilt() -> list[RecordBatch]:
    before: dict[str, set[bytes]] = {}
    after: dict[str, list[RecordBatch]] = {}
    with tarfile.open(ARCHIVE, mode="r:xz") as tar:
        for member in tar:
            case, _, rest = member.name.partition("/")
            if not rest.endswith(".log"):
                continue
            content = existing(tar.extractfile(member))
            for batch in whole_batches(content.read()):
                if rest.startswith("before/"):
                    before.setdefault(case, set()).add(bytes(batch.data))
                elif isinstance(batch, RecordBatch):
                    after.setdefault(case, []).append(batch)
    return [
        batch
        for case, batches in after.items()
        for batch in batches
        if bytes(batch.data) not in before.get(case, set())
    ]


def test_compressed_payloads_are_kafkas(rebuilt: list[RecordBatch]) -> None:
    same: Counter[tuple[Codec, bool]] = Counter()
    for batch in rebuilt:
        if batch.codec and batch.count:
            payload = batch.payload()
            again = compress(batch.codec, decompress(batch.codec, payload))
            same[batch.codec, again == payload] += 1

    for codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD):
        assert same[codec, False] == 0
        assert same[codec, True] >= REBUILT_MIN[codec]
    assert same[Codec.SNAPPY, True] > same[Codec.SNAPPY, False]


def test_whole_batches_are_kafkas(rebuilt: list[RecordBatch]) -> None:
    counts: Counter[Codec] = Counter()
    for batch in rebuilt:
        if batch.count == 0:
            assert bytes(batch.data) == encode_empty_batch(batch)
            continue
        counts[batch.codec] += 1
        if batch.codec == Codec.SNAPPY:
            continue
        again = encode_batch(
            list(batch.records()),
            base_offset=batch.base_offset,
            last_offset=batch.last_offset,
            codec=batch.codec,
            timestamp_type=batch.timestamp_type,
            max_timestamp=batch.max_timestamp,
            delete_horizon_ms=batch.delete_horizon_ms,
            leader_epoch=batch.leader_epoch,
            producer_id=batch.producer_id,
            producer_epoch=batch.producer_epoch,
            base_sequence=batch.base_sequence,
            is_transactional=batch.is_transactional,
            is_control=batch.is_control,
        )
        assert bytes(batch.data) == again
    assert all(counts[codec] >= least for codec, least in REBUILT_MIN.items())
