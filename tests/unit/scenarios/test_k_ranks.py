"""Which record of a key wins, by the strategies of KIP-280 (cleaning.md section 8.8)."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from keeplast.format.compression import Codec
from keeplast.format.record import Record
from keeplast.log.append import NewRecord
from tests.support import legacy_sets
from tests.support.log_builder import record_of
from tests.support.scenario_log import ScenarioLog
from tests.support.versioned_log import (
    BY_HEADER,
    BY_TIMESTAMP,
    HEADER_NAME,
    deletion,
    left,
    offsets_left,
    version_bytes,
    versioned,
    write,
)
from tests.unit.scenarios.conftest import MakeLog

A = b"a"
NAME = HEADER_NAME.encode()
LOWEST = -(2**63)


@pytest.fixture
def by_header(make_log: MakeLog) -> ScenarioLog:
    """Return a log that ranks by the header ``ver``."""
    return make_log(BY_HEADER)


@pytest.fixture
def by_timestamp(make_log: MakeLog) -> ScenarioLog:
    """Return a log that ranks by timestamp."""
    return make_log(BY_TIMESTAMP)


def test_k01_without_a_strategy_the_last_offset_wins(log: ScenarioLog) -> None:
    write(log, versioned(A, 9), versioned(A, 1))
    log.clean()
    assert [1] == offsets_left(log)


@pytest.mark.parametrize(
    ("stamps", "winner"),
    [
        pytest.param((9, 5), 0, id="K02"),
        pytest.param((7, 7), 1, id="K03"),
        pytest.param((0, -1), 0, id="K04"),
        (((1 << 62), 5), 0),
        ((5, 5, 4), 1),
    ],
)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_the_greatest_timestamp_wins(
    by_timestamp: ScenarioLog, stamps: tuple[int, ...], winner: int, codec: Codec
) -> None:
    for stamp in stamps:
        by_timestamp.append(record_of(A, timestamp_ms=stamp), codec=codec)
    by_timestamp.roll()
    by_timestamp.clean()
    assert [winner] == offsets_left(by_timestamp)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize(
    ("versions", "winner"),
    [
        pytest.param((2, 1, 3), 2, id="K05"),
        pytest.param((None, None), 1, id="K07"),
        pytest.param((1, None), 0, id="K08-versioned-first"),
        pytest.param((None, 1), 1, id="K08-versioned-last"),
        pytest.param((4, 3, 2, 4), 3, id="K09"),
        pytest.param((-5, 3, -9), 1, id="K10"),
        pytest.param((-5, None), 0, id="K10-negative-beats-missing"),
        pytest.param((LOWEST, None), 0, id="K11"),
        pytest.param((None, LOWEST), 1, id="K11-lowest-last"),
        pytest.param((-1, LOWEST, None), 0, id="K11-minus-one-is-a-version"),
        ((2**63 - 1, 2**63 - 2), 0),
    ],
)
def test_the_greatest_version_wins(
    by_header: ScenarioLog, versions: tuple[int | None, ...], winner: int, codec: Codec
) -> None:
    for version in versions:
        by_header.append(versioned(A, version), codec=codec)
    by_header.roll()
    by_header.clean()
    assert [winner] == offsets_left(by_header)


def test_k06_the_last_occurrence_of_the_header_counts(by_header: ScenarioLog) -> None:
    twice = NewRecord(A, b"v", headers=((NAME, version_bytes(9)), (NAME, version_bytes(1))))
    write(by_header, versioned(A, 5), twice)
    by_header.clean()
    assert [0] == offsets_left(by_header)


@pytest.mark.parametrize("value", [b"\0\0\0\x09", b"\0" * 9, b"", None])
def test_k12_a_header_that_is_not_eight_bytes_is_counted_and_no_version(
    by_header: ScenarioLog, value: bytes | None
) -> None:
    malformed = NewRecord(A, b"v", headers=((NAME, value),))
    write(by_header, versioned(A, 1), malformed, versioned(b"b"), versioned(b"b"))
    report = by_header.clean()
    assert [0, 3] == offsets_left(by_header)
    assert report.stats is not None
    assert (2, 1) == (report.stats.versions_missing, report.stats.versions_malformed)
    assert any("2 records lack the header ver, 1 have one" in note for note in report.notes)


def test_k13_no_earlier_occurrence_steps_in_for_a_malformed_last_one(
    by_header: ScenarioLog,
) -> None:
    mixed = NewRecord(A, b"v", headers=((NAME, version_bytes(9)), (NAME, b"\0\0\0\x09")))
    write(by_header, versioned(A, 1), mixed)
    by_header.clean()
    assert [0] == offsets_left(by_header)


@pytest.mark.parametrize("name", [b"Ver", b"ve", b"vers", b"", b"ver\0"])
def test_k14_the_name_of_the_header_is_exact(by_header: ScenarioLog, name: bytes) -> None:
    write(by_header, versioned(A, 1), versioned(A, 9, name=name))
    by_header.clean()
    assert [0] == offsets_left(by_header)


def test_the_header_is_found_among_others_whatever_surrounds_it(by_header: ScenarioLog) -> None:
    others: tuple[tuple[bytes, bytes | None], ...] = ((b"trace", None), (b"x" * 200, b"y" * 300))
    crowded = NewRecord(
        A, b"w" * 5000, headers=(*others, (NAME, version_bytes(7)), (b"other", b"12345678"))
    )
    write(by_header, crowded, versioned(A, 6), versioned(A, 5))
    by_header.clean()
    assert [0] == offsets_left(by_header)


def test_the_name_of_the_header_is_in_utf8(make_log: MakeLog) -> None:
    log = make_log(replace(BY_HEADER, strategy_header="größe"))
    write(log, versioned(A, 2, name="größe".encode()), versioned(A, 1, name="größe".encode()))
    log.clean()
    assert [0] == offsets_left(log)


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        pytest.param(versioned(A, 4), deletion(A, 4), [(1, True)], id="K22-tombstone-last"),
        pytest.param(deletion(A, 4), versioned(A, 4), [(1, False)], id="K22-value-last"),
        pytest.param(versioned(A, 1), deletion(A), [(0, False)], id="K23"),
        pytest.param(versioned(A, 5), deletion(A, 3), [(0, False)], id="K20"),
    ],
)
def test_a_tombstone_takes_part_with_its_own_version(
    by_header: ScenarioLog, first: NewRecord, second: NewRecord, expected: list[tuple[int, bool]]
) -> None:
    """A tombstone that loses goes at once: its horizon is for those that win."""
    write(by_header, first, second, versioned(b"z", 1))
    report = by_header.clean()
    assert [*expected, (2, False)] == left(by_header)
    assert report.reasons is not None
    assert (1, 0) == (report.reasons.superseded_records, report.reasons.tombstone_records)


def test_k33_an_aborted_record_takes_no_part(by_header: ScenarioLog) -> None:
    aborted = by_header.producer(7)
    aborted.send_records(versioned(A, 9))
    aborted.abort()
    by_header.append(versioned(A, 1))
    by_header.append(versioned(b"z", 1))
    by_header.roll()
    by_header.clean()
    assert [2, 3] == offsets_left(by_header)


def test_k33_nor_does_one_in_the_clean_section(by_header: ScenarioLog) -> None:
    aborted = by_header.producer(7)
    aborted.send_records(versioned(A, 9))
    aborted.abort()
    by_header.roll()
    write(by_header, versioned(A, 1))
    by_header.clean(2)
    assert [2] == offsets_left(by_header)


def test_records_of_an_old_format_have_no_headers(by_header: ScenarioLog) -> None:
    by_header.add(legacy_sets.encode_message_set([Record(0, 5, A, b"old")], magic=1))
    by_header.add(legacy_sets.encode_message_set([Record(1, 5, A, b"old")], magic=0))
    write(by_header, versioned(A, LOWEST), versioned(A))
    report = by_header.clean()
    assert [2] == offsets_left(by_header)
    assert report.stats is not None
    assert 3 == report.stats.versions_missing


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_records_of_an_old_format_have_timestamps_if_any(
    by_timestamp: ScenarioLog, codec: Codec
) -> None:
    for records, magic in (([Record(0, -1, A, b"0")], 0), ([Record(1, 8, A, b"1")], 1),
                           ([Record(2, 7, A, b"2")], 1)):  # fmt: skip
        by_timestamp.add(legacy_sets.encode_message_set(records, magic=magic, codec=codec))
    write(by_timestamp, record_of(A, timestamp_ms=6))
    by_timestamp.clean()
    assert [1] == offsets_left(by_timestamp)


def test_k39_with_append_time_the_batch_decides_and_a_clock_that_stepped_back_shows(
    by_timestamp: ScenarioLog,
) -> None:
    for stamp in (10, 20, 30):
        by_timestamp.append(record_of(A, timestamp_ms=999 - stamp), append_time_ms=stamp)
        by_timestamp.append(record_of(b"b", timestamp_ms=1), append_time_ms=40 - stamp)
    by_timestamp.roll()
    by_timestamp.clean()
    assert [1, 4] == offsets_left(by_timestamp)


def test_timestamps_of_a_batch_with_a_delete_horizon_are_still_its_records(
    by_timestamp: ScenarioLog,
) -> None:
    """The horizon takes the place of the base timestamp, and the deltas change with it."""
    by_timestamp.append(
        NewRecord(A, None, 1_000), NewRecord(b"b", b"v", 500), NewRecord(b"c", b"v", 2_000)
    )
    by_timestamp.roll()
    by_timestamp.clean()
    (batch,) = by_timestamp.batches()
    assert batch.delete_horizon_ms is not None
    write(
        by_timestamp, record_of(b"b", timestamp_ms=501), record_of(b"c", timestamp_ms=1_999),
        record_of(A, timestamp_ms=999),
    )  # fmt: skip
    by_timestamp.clean()
    assert [0, 2, 3] == offsets_left(by_timestamp)


def test_k40_a_record_dated_far_ahead_keeps_winning(by_timestamp: ScenarioLog) -> None:
    year_3000 = 32_503_680_000_000
    write(by_timestamp, record_of(A, timestamp_ms=year_3000))
    by_timestamp.clean()
    for _ in range(3):
        write(by_timestamp, record_of(A, timestamp_ms=by_timestamp.now_ms))
        by_timestamp.clean()
    assert [0] == offsets_left(by_timestamp)
