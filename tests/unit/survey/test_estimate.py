"""What a plan expects of a round, against what an exact plan counts."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from keeplast.cleaner.shapes import (
    MAP_BYTES_PER_SLOT_BYTE,
    PACK_SECONDS_A_BYTE,
    UNPACK_SECONDS_A_BYTE,
    index_seconds,
    rewrite_seconds,
)
from keeplast.clock import SystemClock
from keeplast.errors import CorruptError
from keeplast.format.batch import encode_batch
from keeplast.format.compression import Codec
from keeplast.format.record import ControlType, Record
from keeplast.format.txn_index import AbortedTransaction
from keeplast.model.document import encode
from keeplast.model.topic_config import SLOT_BYTES, CleanerConfig
from keeplast.rewrite.stats import Reasons, Stats
from keeplast.survey import sample
from keeplast.survey.report import Estimate
from keeplast.survey.request import CleanRequest
from tests.support.counting_files import CountingFiles
from tests.support.existing import existing
from tests.support.flipped import flip
from tests.support.partition_maker import (
    NOW_MS,
    PARTITION,
    SMALL_SEGMENTS,
    clean_request,
    coordinator,
    data_batch,
    last_round,
    marker,
    one,
    write_partition,
    write_segment,
    write_snapshot,
)

RECORDS = 120_000
BATCH_RECORDS = 20
SEGMENTS = 4
VALUE = bytes(280)
RECORD_BYTES = 299
"""With its key and lengths, before it is compressed."""
RUN_FACTOR = 8
"""Predictions are right within a factor of two on a quiet machine like the one of the docs; another
one, and what shares its cores, make the rest."""
OTHER_BYTES_MAX = 1 << 20
"""Indexes of a log of these tests, read whole, and what else a survey reads."""

Draw = Callable[[np.random.Generator], NDArray[np.int64]]


class StillClock(SystemClock):
    """Never gets later, so that a busy machine does not cut a sample short."""

    def seconds(self) -> float:
        return 0.0


def batches(
    keys: Iterable[int], *, first: int = 0, tombstone_every: int = 0, codec: Codec = Codec.NONE
) -> bytes:
    """Return batches of records with these keys; every so many-th is a tombstone."""
    records = [
        Record(
            first + i,
            NOW_MS,
            b"%010d" % key,
            None if tombstone_every and i % tombstone_every == 0 else VALUE,
        )
        for i, key in enumerate(keys)
    ]
    return b"".join(
        encode_batch(records[i : i + BATCH_RECORDS], codec=codec)
        for i in range(0, len(records), BATCH_RECORDS)
    )


def write_keys(
    root: Path, keys: NDArray[np.int64], *, tombstone_every: int = 0, codec: Codec = Codec.NONE
) -> Path:
    """Write a log of these keys in SEGMENTS segments and an empty active one, with a snapshot."""
    size = len(keys) // SEGMENTS
    segments = {
        first: batches(
            keys[first : first + size].tolist(),
            first=first, tombstone_every=tombstone_every, codec=codec,
        )
        for first in range(0, len(keys), size)
    }  # fmt: skip
    directory = write_partition(root, {**segments, len(keys): b""})
    write_snapshot(directory, len(keys))
    return directory


def estimate_of(request: CleanRequest) -> Estimate:
    estimate = existing(last_round(coordinator(clock=StillClock()).plan(request)).estimate)
    return estimate


def truth_of(request: CleanRequest) -> tuple[Stats, Reasons]:
    report = last_round(coordinator().plan(request, exact=True))
    assert report.stats is not None
    assert report.reasons is not None
    assert report.estimate is None
    return report.stats, report.reasons


def seconds_of_a_run(request: CleanRequest) -> float:
    """Return the processor time of all that a round does but for writing it down."""
    started = time.process_time()
    truth_of(request)
    return time.process_time() - started


def assert_near(expected: float, actual: float | None, factor: float) -> None:
    assert actual is not None
    assert expected / factor <= actual <= expected * factor, (expected, actual)


def assert_counts(stats: Stats, reasons: Reasons, estimate: Estimate, factor: float) -> None:
    """Compare what a plan says with the truth; what is rare in the truth is not compared."""
    pairs = [
        (stats.messages_read, estimate.messages_read),
        (stats.messages_written, estimate.messages_written),
        (stats.bytes_read, estimate.bytes_read),
        (stats.tombstones_read, estimate.tombstones_read),
        (stats.tombstones_written, estimate.tombstones_written),
        (stats.distinct_keys, estimate.distinct_keys),
        (reasons.superseded_records, estimate.superseded_records),
    ]
    for expected, actual in pairs:
        if expected >= 200:
            assert_near(expected, actual, factor)
    if stats.messages_written >= 200:
        assert_near(stats.bytes_written, estimate.bytes_written, factor)
    assert estimate.distinct_keys is not None
    slots = estimate.distinct_keys * SLOT_BYTES * MAP_BYTES_PER_SLOT_BYTE
    assert slots == estimate.key_map_bytes


def zipf(keys: int, power: float) -> Draw:
    weights = np.cumsum(1 / np.arange(1, keys + 1) ** power)
    return lambda dice: np.searchsorted(weights / weights[-1], dice.random(RECORDS))


def hot(dice: np.random.Generator) -> NDArray[np.int64]:
    rare = dice.integers(100, 100_000, RECORDS)
    return np.where(dice.random(RECORDS) < 0.9, dice.integers(0, 100, RECORDS), rare)


DRAWS: dict[str, tuple[Draw, float]] = {
    "few": (lambda dice: dice.integers(0, 50, RECORDS), 1.25),
    "uniform": (lambda dice: dice.integers(0, 30_000, RECORDS), 1.25),
    "hardly any twice": (lambda dice: dice.integers(0, 1_000_000, RECORDS), 1.5),
    "all different": (lambda dice: np.arange(RECORDS), 1.25),
    "hot": (hot, 1.5),
    "zipf 1": (zipf(40_000, 1.0), 2),
    "zipf 0.7": (zipf(100_000, 0.7), 2),
    "zipf 1.5": (zipf(1_000_000, 1.5), 2),
    "short sessions": (lambda dice: np.arange(RECORDS) // 10, 1.25),
}
"""How keys are drawn, and within what factor the estimates have to be."""


@pytest.mark.rotates(3)
@pytest.mark.parametrize("name", DRAWS)
def test_estimates_are_near_what_an_exact_plan_counts(name: str, tmp_path: Path) -> None:
    draw, factor = DRAWS[name]
    directory = write_keys(tmp_path, draw(np.random.default_rng(7)), tombstone_every=40)
    for first_dirty in (0, RECORDS * 3 // 4 + 10):
        request = replace(clean_request(directory), first_dirty_offset=first_dirty)
        estimate = estimate_of(request)
        stats, reasons = truth_of(request)
        assert estimate.sampled_bytes < stats.bytes_read / 2
        assert_counts(stats, reasons, estimate, factor)


def test_compressed_log_is_estimated_by_what_is_in_it(tmp_path: Path) -> None:
    keys = np.random.default_rng(7).integers(0, 30_000, RECORDS)
    request = clean_request(write_keys(tmp_path, keys, codec=Codec.LZ4))
    estimate = estimate_of(request)
    stats, reasons = truth_of(request)
    assert_counts(stats, reasons, replace(estimate, bytes_written=stats.bytes_written), 1.25)


def test_small_log_is_read_whole_and_counted(tmp_path: Path) -> None:
    keys = np.random.default_rng(7).integers(0, 700, 2000)
    directory = write_keys(tmp_path, keys, tombstone_every=10)
    for first_dirty in (0, 1000, 1010):
        request = replace(clean_request(directory), first_dirty_offset=first_dirty)
        estimate = estimate_of(request)
        stats, reasons = truth_of(request)
        assert stats.bytes_read == estimate.sampled_bytes == estimate.bytes_read
        assert stats.messages_read == estimate.messages_read
        assert stats.distinct_keys == estimate.distinct_keys
        assert stats.tombstones_read == estimate.tombstones_read
        assert reasons.superseded_records == estimate.superseded_records
        assert stats.messages_written == estimate.messages_written


def test_plan_reads_a_bounded_part_whatever_the_log_holds(tmp_path: Path) -> None:
    keys = np.random.default_rng(7).integers(0, 30_000, 2 * RECORDS)
    directory = write_keys(tmp_path, keys)
    request = replace(clean_request(directory), first_dirty_offset=RECORDS)
    files = CountingFiles()
    report = last_round(coordinator(files=files, clock=StillClock()).plan(request))
    assert report.estimate is not None
    window = sample.WINDOW_BYTES + sample.BATCH_BYTES_MAX
    assert files.bytes_read < sample.BYTES_MAX + window + OTHER_BYTES_MAX
    assert report.estimate.sampled_bytes < sample.BYTES_MAX + window
    assert files.bytes_read < report.estimate.bytes_read / 3


def test_sampling_ends_when_its_time_is_over(tmp_path: Path) -> None:
    class SlowClock(SystemClock):
        calls = 0

        def seconds(self) -> float:
            self.calls += 1
            return self.calls * sample.SECONDS_MAX / 8

    keys = np.random.default_rng(7).integers(0, 300, RECORDS)
    request = clean_request(write_keys(tmp_path, keys))
    report = last_round(coordinator(clock=SlowClock()).plan(request))
    assert report.estimate is not None
    assert 0 < report.estimate.sampled_bytes <= 8 * sample.WINDOW_BYTES
    assert_near(300, report.estimate.distinct_keys, 1.5)


def test_damage_in_the_sample_fails_the_plan_with_the_segment_named(tmp_path: Path) -> None:
    directory = write_keys(tmp_path, np.arange(2000) % 100)
    path = directory / f"{500:020d}.log"
    flip(path, 3000, 0xFF)
    report = last_round(coordinator().plan(clean_request(directory)))
    assert (None, None) == (report.estimate, report.groups)
    assert isinstance(report.failure, CorruptError)
    assert report.error is not None
    assert str(path) in report.error.message
    counted = last_round(coordinator().plan(clean_request(directory), exact=True))
    assert counted.error == report.error


def test_sample_with_hardly_a_key_twice_says_nothing_about_keys(tmp_path: Path) -> None:
    keys = np.random.default_rng(7).integers(0, 2000, 300)
    data = b"".join(one(i, b"%d" % key, bytes(100_000)) for i, key in enumerate(keys.tolist()))
    estimate = estimate_of(clean_request(write_partition(tmp_path, {0: data, 300: b""})))
    assert_near(300, estimate.messages_read, 1.1)
    assert (None, None, None, None) == (
        estimate.distinct_keys,
        estimate.superseded_records,
        estimate.messages_written,
        estimate.bytes_written,
    )


def test_batches_too_large_for_a_sample_give_no_estimate(tmp_path: Path) -> None:
    size = sample.BATCH_BYTES_MAX
    data = b"".join(one(i, b"%d" % i, bytes(size)) for i in range(12))
    report = last_round(
        coordinator().plan(clean_request(write_partition(tmp_path, {0: data, 12: b""})))
    )
    assert None is report.estimate
    assert None is report.error


def test_aborted_records_and_markers_are_counted_apart(tmp_path: Path) -> None:
    data = b"".join(
        (
            data_batch(0, 7, [b"a", b"b", b"c"]),
            one(3, b"a"),
            marker(4, 7, ControlType.ABORT),
            data_batch(5, 7, [b"a", b"d"], sequence=3),
            marker(7, 7, ControlType.COMMIT),
            one(8, None),
            one(9, b"d"),
        )
    )
    directory = tmp_path / str(PARTITION)
    write_segment(directory, 0, data, aborted=[AbortedTransaction(7, 0, 4, 5)])
    write_segment(directory, 10, b"")
    request = clean_request(directory)
    estimate = estimate_of(request)
    stats, reasons = truth_of(request)
    assert (3, 1, 2, 2) == (
        estimate.aborted_records,
        estimate.keyless_records,
        estimate.superseded_records,
        estimate.distinct_keys,
    )
    assert (reasons.aborted_records, reasons.keyless_records, reasons.superseded_records) == (
        estimate.aborted_records,
        estimate.keyless_records,
        estimate.superseded_records,
    )
    assert stats.messages_read == estimate.messages_read


def test_tombstones_past_their_horizon_go(tmp_path: Path) -> None:
    def tombstone(offset: int, key: bytes, horizon_ms: int) -> bytes:
        return encode_batch([Record(offset, NOW_MS, key, None)], delete_horizon_ms=horizon_ms)

    data = tombstone(0, b"a", NOW_MS) + tombstone(1, b"b", NOW_MS + 1) + one(2, b"c", None)
    directory = write_partition(tmp_path, {0: data, 3: one(3, b"d"), 4: b""})
    for first_dirty in (0, 3):
        request = replace(clean_request(directory), first_dirty_offset=first_dirty)
        estimate = estimate_of(request)
        stats, reasons = truth_of(request)
        assert (3, 1) == (estimate.tombstones_read, estimate.tombstone_records)
        assert reasons.tombstone_records == estimate.tombstone_records
        assert stats.tombstones_written == estimate.tombstones_written
        assert stats.messages_written == estimate.messages_written


@pytest.mark.rotates(2)
@pytest.mark.parametrize("keys", [3000, 20_000])
def test_bounded_map_ends_the_round_where_it_is_full(keys: int, tmp_path: Path) -> None:
    drawn = np.random.default_rng(7).integers(0, 30_000, RECORDS)
    cleaner = CleanerConfig(key_map_bytes=24 * keys, load_factor=1.0)
    directory = write_keys(tmp_path, drawn)
    request = replace(clean_request(directory, cleaner=cleaner), first_dirty_offset=RECORDS // 4)
    estimate = estimate_of(request)
    report = last_round(coordinator().plan(request, exact=True))
    assert report.stats is not None
    assert report.reasons is not None
    assert keys == estimate.distinct_keys == report.stats.distinct_keys
    assert_near(report.reasons.superseded_records, estimate.superseded_records, 1.25)
    # A round reads to the end of the segment in which the map filled.
    assert report.stats.bytes_read == estimate.bytes_read
    assert_near(report.stats.messages_written, estimate.messages_written, 1.25)


def test_disk_is_the_largest_group_in_place_and_the_log_at_a_target(tmp_path: Path) -> None:
    directory = write_partition(
        tmp_path, {0: one(0, b"a"), 1: one(1, b"a", bytes(100)), 2: one(2, b"a")}
    )
    sizes = [path.stat().st_size for path in sorted(directory.glob("*.log"))]
    request = clean_request(directory, topic=SMALL_SEGMENTS)
    plan = coordinator().plan
    assert max(sizes[:2]) == last_round(plan(request)).disk_bytes
    elsewhere = replace(request, target=tmp_path / "elsewhere")
    assert sum(sizes) == last_round(plan(elsewhere)).disk_bytes


def test_document_distinguishes_estimates_from_counts(tmp_path: Path) -> None:
    request = clean_request(write_partition(tmp_path, {0: one(0, b"a"), 1: one(1, b"b")}))
    estimated = encode(last_round(coordinator().plan(request)))
    assert (None, None) == (estimated["stats"], estimated["reasons"])
    assert 1 == estimated["estimate"]["messages_read"]
    counted = encode(last_round(coordinator().plan(request, exact=True)))
    assert (None, None) == (counted["estimate"], counted["disk_bytes"])
    assert 1 == counted["stats"]["messages_read"]


@pytest.mark.rotates(3)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
def test_seconds_follow_from_what_the_passes_read_and_write(codec: Codec, tmp_path: Path) -> None:
    keys = np.random.default_rng(7).integers(0, 30_000, RECORDS)
    request = clean_request(write_keys(tmp_path, keys, codec=codec))
    estimate = estimate_of(request)
    stats, _ = truth_of(request)
    payload = RECORDS * RECORD_BYTES if codec else 0
    kept = payload * stats.messages_written / stats.messages_read
    indexing = index_seconds(stats.bytes_read, stats.messages_read, stats.distinct_keys)
    indexing += payload * UNPACK_SECONDS_A_BYTE[codec]
    whole = indexing + payload * UNPACK_SECONDS_A_BYTE[codec] + kept * PACK_SECONDS_A_BYTE[codec]
    whole += rewrite_seconds(stats.bytes_read, stats.messages_read, stats.bytes_written)
    assert_near(indexing, estimate.index_seconds, 1.25)
    assert_near(whole, estimate.seconds, 1.25)
    assert_near(min(seconds_of_a_run(request) for _ in range(3)), estimate.seconds, RUN_FACTOR)


def test_nothing_is_written_or_packed_again_where_nothing_goes(tmp_path: Path) -> None:
    once = clean_request(write_keys(tmp_path / "once", np.arange(RECORDS // 4), codec=Codec.ZSTD))
    twice = np.arange(RECORDS // 4) % 1000
    again = clean_request(write_keys(tmp_path / "again", twice, codec=Codec.ZSTD))
    one, other = estimate_of(once), estimate_of(again)
    assert one.seconds - one.index_seconds < other.seconds - other.index_seconds
