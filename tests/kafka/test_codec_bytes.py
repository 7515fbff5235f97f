"""Our compressors give Kafka's bytes, for payloads from a few records to the largest batches.

Sizes of rebuilt batches, and with them index positions and later grouping, are Kafka's only if the
bytes are. Snappy is not here: no library gives the bytes of Kafka's.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.format.batch import HEADER_BYTES
from keeplast.format.compression import Codec, compress, decompress
from keeplast.format.message_set import read_batches
from tests.kafka.oracle.driver import Oracle

pytestmark = pytest.mark.kafka

VALUE_BYTES = 1000
RECORD_COUNTS = (1, 2, 10, 50, 100, 126, 131, 140, 200, 500, 900)
ALPHABETS = (2, 4, 26, 250)
"""From very compressible to hardly at all."""
TIMESTAMP_MS = 1_700_000_000_000
LARGE = 1 << 30


@pytest.mark.parametrize("codec", [Codec.GZIP, Codec.LZ4, Codec.ZSTD])
def test_compressed_bytes_are_kafkas(codec: Codec, oracle: Oracle, tmp_path: Path) -> None:
    operations = []
    for count in RECORD_COUNTS:
        for alphabet in ALPHABETS:
            values = [{"n": VALUE_BYTES, "seed": i, "alpha": alphabet} for i in range(count)]
            records = [[f"key{i}", value, TIMESTAMP_MS] for i, value in enumerate(values)]
            operations.append({"t": "b", "codec": codec.name.lower(), "recs": records})
    partition = tmp_path / "t-0"
    oracle.demand(
        {
            "op": "write",
            "dir": str(partition),
            "config": {"segment.bytes": LARGE, "max.message.bytes": LARGE},
            "ops": operations,
        }
    )
    (log,) = partition.glob("*.log")
    different = []
    for batch in read_batches(log.read_bytes()):
        plain = decompress(codec, batch.data[HEADER_BYTES:])
        if compress(codec, plain) != bytes(batch.data[HEADER_BYTES:]):
            different.append((batch.count, len(plain)))
    assert different == []
