"""Compressed batches are decompressed once where memory allows, and the report says whether."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest

from keeplast.cleaner.shapes import ShapeChoice
from keeplast.clock import SystemClock
from keeplast.format.batch import encode_batch
from keeplast.format.compression import Codec
from keeplast.format.record import Record
from keeplast.log.files import LocalFiles
from keeplast.model.topic_config import Shape
from keeplast.rewrite import workspace
from keeplast.rewrite.stats import Stats
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.report import RoundReport
from tests.support.cleanings import Reshaped
from tests.support.legacy_sets import encode_message_set
from tests.support.partition_maker import (
    NOW_MS,
    SMALL_SEGMENTS,
    clean,
    clean_request,
    last_round,
    one,
    write_partition,
)

BATCHES = 4
RECORDS = 40


def records(base: int) -> list[Record]:
    dice = random.Random(base)
    return [
        Record(base + i, NOW_MS, b"%d" % (base + i), dice.randbytes(100)) for i in range(RECORDS)
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


def test_with_room_every_batch_is_decompressed_once(directory: Path) -> None:
    report = clean(clean_request(directory, topic=SMALL_SEGMENTS))
    assert (BATCHES, BATCHES) == counts(report)
    assert isinstance(report.stats, Stats)
    payload = report.stats.decompressed_bytes
    assert payload == report.stats.reused_bytes
    assert BATCHES * RECORDS * 100 < payload < BATCHES * RECORDS * 120


def test_without_room_every_batch_is_decompressed_by_both_passes(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workspace, "cache_bytes_of", lambda memory_bytes: 0)
    report = clean(clean_request(directory, topic=SMALL_SEGMENTS))
    assert (2 * BATCHES, 0) == counts(report)


def test_room_for_one_saves_one(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A ledger takes its part first; it needs a byte or so for each offset.
    monkeypatch.setattr(workspace, "cache_bytes_of", lambda memory_bytes: 8000)
    report = clean(clean_request(directory, topic=SMALL_SEGMENTS))
    assert (2 * BATCHES - 1, 1) == counts(report)


def test_what_only_one_pass_reads_counts_once(directory: Path) -> None:
    request = clean_request(directory, topic=SMALL_SEGMENTS)
    report = clean(replace(request, first_dirty_offset=200))
    assert (BATCHES, 2) == counts(report)


def test_old_formats_and_uncompressed_batches(tmp_path: Path) -> None:
    segments = {
        0: encode_message_set(records(0), magic=1, codec=Codec.GZIP),
        100: encode_message_set(records(100), magic=1) + encode_batch(records(150)),
        200: one(200, b"k"),
    }
    directory = write_partition(tmp_path, segments)
    assert (1, 1) == counts(clean(clean_request(directory, topic=SMALL_SEGMENTS)))


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


def test_the_receipt_has_the_counts(directory: Path, tmp_path: Path) -> None:
    receipt = tmp_path / "receipt"
    clean(replace(clean_request(directory, topic=SMALL_SEGMENTS), receipt=receipt))
    stats = json.loads(receipt.read_text())["round"]["stats"]
    assert (BATCHES, BATCHES) == (stats["batches_decompressed"], stats["batches_reused"])
