"""Compressed batches are decompressed once where memory allows, and the report says whether."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from keeplast.cleaner.shapes import ShapeChoice
from keeplast.clock import SystemClock
from keeplast.format.batch import encode_batch
from keeplast.format.compression import Codec
from keeplast.format.record import ControlType, Record
from keeplast.log.files import LocalFiles
from keeplast.model.topic_config import Shape
from keeplast.rewrite import workspace
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.report import RoundReport
from tests.support.cleanings import OF_THE_SHAPE, TIMED, Reshaped
from tests.support.legacy_sets import encode_message_set
from tests.support.partition_maker import (
    NOW_MS,
    SMALL_SEGMENTS,
    clean,
    clean_request,
    last_round,
    marker,
    one,
    write_partition,
)

BATCHES = 4
RECORDS = 40


def records(base: int) -> list[Record]:
    """Return records of which every second one stays."""
    dice = random.Random(base)
    return [
        Record(base + i, NOW_MS, b"%d" % (base + i // 2), dice.randbytes(100))
        for i in range(RECORDS)
    ]


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Four closed segments with a compressed batch each, and an active one."""
    segments = {
        base: encode_batch(records(base), codec=Codec.ZSTD) for base in range(0, BATCHES * 100, 100)
    }
    return write_partition(tmp_path / "data", {**segments, BATCHES * 100: one(BATCHES * 100, b"k")})


def counts(report: RoundReport) -> tuple[int, int]:
    assert report.stats is not None
    return report.stats.batches_decompressed, report.stats.batches_reused


@pytest.mark.parametrize(
    ("room", "first_dirty", "expected"),
    [
        (None, None, (BATCHES, BATCHES)),
        (0, None, (2 * BATCHES, 0)),
        # A ledger takes its part first; it needs a byte or so for each offset.
        (8000, None, (2 * BATCHES - 1, 1)),
        (None, 200, (BATCHES, 2)),
    ],
)
def test_the_receipt_says_how_often_memory_saved_a_decompression(
    directory: Path, monkeypatch: pytest.MonkeyPatch, room: int | None, first_dirty: int | None,
    expected: tuple[int, int],
) -> None:  # fmt: skip
    if room is not None:
        monkeypatch.setattr(workspace, "cache_bytes_of", lambda memory_bytes: room)
    request = clean_request(directory, topic=SMALL_SEGMENTS)
    receipt = directory.parent / "receipt"
    clean(replace(request, first_dirty_offset=first_dirty, receipt=receipt))
    stats = json.loads(receipt.read_text())["round"]["stats"]
    assert expected == (stats["batches_decompressed"], stats["batches_reused"])
    for batches, size in zip(
        expected, (stats["decompressed_bytes"], stats["reused_bytes"]), strict=True
    ):
        assert batches * RECORDS * 100 <= size <= batches * RECORDS * 120


OTHER = 500
"""The offset of a batch with keys of its own."""

KEPT = [Record(OTHER + i, NOW_MS, b"other %d" % i, b"v") for i in range(9)]
TOMBSTONE, KEYLESS = Record(OTHER + 9, NOW_MS, b"o", None), Record(OTHER + 9, NOW_MS, None, b"v")


@pytest.mark.parametrize(
    ("records", "options", "again"),
    [
        (KEPT, {}, 0),
        ([*KEPT, TOMBSTONE], {}, 1),
        ([*KEPT, KEYLESS], {}, 1),
        (KEPT[::2], {}, 1),
        (KEPT, {"is_transactional": True, "producer_id": 7, "producer_epoch": 0}, 1),
    ],
)
def test_what_standings_decide_is_not_decompressed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, records: list[Record],
    options: dict[str, Any], again: int,
) -> None:  # fmt: skip
    """Nothing stays of the first batch, and everything of the second and the third."""
    values = [Record(i, NOW_MS, b"k%d" % i, b"v" * i) for i in range(9)]
    segments = {
        0: encode_batch(values, codec=Codec.ZSTD),
        100: encode_batch([replace(each, offset=100 + each.offset) for each in values],
                          codec=Codec.LZ4),
        OTHER: encode_batch(records, codec=Codec.GZIP, **options),
        OTHER + 50: marker(OTHER + 50, 7, ControlType.COMMIT), OTHER + 90: one(OTHER + 90, b"y"),
    }  # fmt: skip

    def cleaned(name: str, decompressed: int) -> object:
        directory = write_partition(tmp_path / name, segments)
        report = clean(clean_request(directory, topic=SMALL_SEGMENTS))
        assert (decompressed, 0) == counts(report)
        assert report.stats is not None
        machine: dict[str, Any] = dict.fromkeys((*OF_THE_SHAPE, *TIMED))
        contents = {each.name: each.read_bytes() for each in directory.iterdir()}
        return replace(report.stats, **machine), report.reasons, contents

    noted = cleaned("noted", 3 + again)
    monkeypatch.setattr(workspace.DecompressedCache, "note", lambda *_: None)
    assert noted == cleaned("not noted", 6)


def test_old_formats_and_uncompressed_batches(tmp_path: Path) -> None:
    segments = {
        0: encode_message_set(records(0), magic=1, codec=Codec.GZIP),
        100: encode_message_set(records(100), magic=1) + encode_batch(records(150)),
        200: one(200, b"k"),
    }
    directory = write_partition(tmp_path, segments)
    assert (2, 0) == counts(clean(clean_request(directory, topic=SMALL_SEGMENTS)))


@pytest.mark.parametrize("choice", [ShapeChoice(Shape.BROADCAST), ShapeChoice(Shape.BUCKET, 2)])
def test_threads_of_a_round_in_stages_share_what_they_decompress(
    directory: Path, choice: ShapeChoice
) -> None:
    with LocalRunner(cores=2) as threads:
        coordinator = Coordinator(
            Reshaped(threads, choice), SystemClock(), LocalFiles(), NoEvents()
        )
        request = clean_request(directory, topic=SMALL_SEGMENTS)
        assert (BATCHES, BATCHES) == counts(last_round(coordinator.clean(request)))
