"""What is dropped while batches are found is what the rules would drop, counted in the same way."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from keeplast.columns import shortcuts
from keeplast.columns.batches import HAS_GAPS, scan_batches
from keeplast.errors import CorruptError
from keeplast.format.batch import encode_batch
from keeplast.format.compression import Codec
from keeplast.format.record import ControlType, Record
from keeplast.rewrite import group as rewrite
from keeplast.survey.report import RoundReport
from tests.support.cleanings import TIMED
from tests.support.partition_maker import clean_at, data_batch, marker, one, write_partition


def all_kinds(seed: int) -> dict[int, bytes]:
    """Return small batches: superseded or not, tombstones, keyless, of producers, compressed."""
    rng = random.Random(seed)
    segments: dict[int, bytes] = {}
    offset = 0
    for _ in range(3):
        base, parts = offset, []
        for _ in range(rng.choice((20, 200))):
            fields: dict[str, Any] = {}
            if rng.random() < 0.2:
                fields = {"producer_id": rng.randrange(4), "producer_epoch": 0, "base_sequence": 1}
            if rng.random() < 0.1:
                fields["codec"] = Codec.LZ4
            if rng.random() < 0.05:
                parts.append(data_batch(offset, 77, [b"k1"]))
                parts.append(marker(offset + 1, 77, ControlType.COMMIT))
                offset += 2
                continue
            records = []
            for _ in range(rng.choice((1, 1, 1, 3))):
                key = None if rng.random() < 0.03 else b"k%d" % rng.randrange(12)
                value = None if rng.random() < 0.2 else b"v" * rng.randrange(40)
                records.append(Record(offset, 5 + offset, key, value))
                offset += rng.choice((1, 1, 3))
            parts.append(encode_batch(records, **fields))
        segments[base] = b"".join(parts)
    segments[offset] = b""
    return segments


def counted(report: RoundReport) -> object:
    assert report.stats is not None
    stats = replace(report.stats, **dict.fromkeys(TIMED, 0), copied_bytes=0)
    return stats, report.reasons, report.groups, report.end_offset


@pytest.mark.parametrize("seed", range(12))
def test_skimming_changes_neither_bytes_nor_counters(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    skimmed = write_partition(tmp_path / "a", all_kinds(seed))
    judged = write_partition(tmp_path / "b", all_kinds(seed))
    marks: list[int] = []

    def watching(*arguments: Any) -> Any:
        found = shortcuts.skim_batches(*arguments)
        marks.append(found[2])
        return found

    monkeypatch.setattr(rewrite, "skim_batches", watching)
    report = clean_at(skimmed)
    assert any(each & HAS_GAPS for each in marks)
    monkeypatch.setattr(rewrite, "skim_batches", lambda *given: scan_batches(*given[:3]))
    assert counted(clean_at(judged)) == counted(report)
    for path in judged.glob("0*"):
        assert path.read_bytes() == (skimmed / path.name).read_bytes()


def test_superseded_batch_with_a_wrong_crc_is_not_dropped(tmp_path: Path) -> None:
    first = one(0, b"a")
    damaged = bytearray(one(1, b"a"))
    damaged[-2] ^= 1
    directory = write_partition(tmp_path, {0: b"", 3: one(3, b"z"), 4: b""})
    (directory / f"{0:020d}.log").write_bytes(first + damaged + one(2, b"a"))
    with pytest.raises(CorruptError, match=f"crc mismatch.* position={len(first)} "):
        clean_at(directory)


def test_segment_of_which_nothing_stays(tmp_path: Path) -> None:
    first = b"".join(one(i, b"a") for i in range(50))
    directory = write_partition(tmp_path, {0: first, 50: one(50, b"a"), 51: b""})
    report = clean_at(directory)
    assert report.stats is not None
    assert (51, 1) == (report.stats.messages_read, report.stats.messages_written)
    assert one(50, b"a") == (directory / f"{0:020d}.log").read_bytes()
