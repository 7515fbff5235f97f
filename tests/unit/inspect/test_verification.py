"""``verify`` beyond one pair: receipts, runs in place, replicas, sizes beyond memory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from keeplast.errors import InvalidError
from keeplast.format.checkpoint import encode_offsets
from keeplast.format.compression import Codec
from keeplast.format.filename import LOG_START_CHECKPOINT
from keeplast.format.record import Record
from keeplast.inspect.sorted_runs import (
    COLUMNS,
    FLAGS,
    HORIZON,
    IS_TOMBSTONE,
    OFFSET,
    OLDER_LEFT,
    OLDER_RIGHT,
    ON_LEFT,
    ON_RIGHT,
    VERSION,
    Rows,
    SortedRuns,
    final_records,
)
from keeplast.inspect.verification import Verifier, VerifySettings
from keeplast.inspect.verified_log import VerificationReport
from keeplast.log.append import NewRecord
from keeplast.log.files import LocalFiles
from keeplast.model.document import Verdict, encode
from keeplast.model.topic_config import CleanerConfig
from keeplast.survey.receipt_book import RoundReceipt, read_receipts
from keeplast.survey.request import CleanRequest, PartitionRequest
from tests.support.cleaned_pair import (
    BOUND,
    LATE_MS,
    SECOND_MS,
    TOPIC,
    CleanedPair,
    broken,
    make_pair,
)
from tests.support.damaged_log import DamagedLog
from tests.support.flipped import flip
from tests.support.legacy_sets import encode_message_set
from tests.support.log_builder import START_MS
from tests.support.scenario_log import DAY_MS, PARTITION, ScenarioLog


def verifier(**settings: Any) -> Verifier:
    return Verifier(LocalFiles(), replace(VerifySettings(topic=TOPIC), **settings))


def unjudged(report: VerificationReport) -> list[str]:
    return [check.name for check in report.checks if check.verdict is Verdict.UNJUDGED]


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A place with ``before``, ``after`` and the ``receipt`` of two rounds between them."""
    root = tmp_path_factory.mktemp("receipts")
    pair = make_pair(root / "made")
    shutil.copytree(pair.before, root / "before" / str(PARTITION))
    after = root / "after" / str(PARTITION)
    shutil.copytree(pair.before, after)
    log = ScenarioLog(root / "runner", TOPIC)
    log.close()
    for now_ms in (SECOND_MS, LATE_MS):
        report = log.run(
            CleanRequest(
                (PartitionRequest(PARTITION, after, TOPIC, CleanerConfig()),),
                now_ms=now_ms,
                is_unsafe=True,
                first_dirty_offset=13,
                force=True,
                receipt=root / "receipt",
            )
        )
        assert report.failure is None
    return root


def receipts_of(kept: Path) -> tuple[RoundReceipt, ...]:
    return read_receipts(kept / "receipt", LocalFiles())


def test_two_rounds_hold_with_their_receipts(kept: Path) -> None:
    """Without them the tombstone at 20 would be gone before it had a horizon."""
    before, after = (kept / name / str(PARTITION) for name in ("before", "after"))
    report = verifier().verify_pair(before, after, receipts_of(kept))
    assert Verdict.HOLDS is report.verdict, encode(report)
    alone = verifier(now_ms=LATE_MS).verify_pair(before, after)
    assert ["horizons"] == broken(alone)


def test_run_in_place_is_judged_by_its_receipt(kept: Path) -> None:
    report = verifier().verify_in_place(kept / "after" / str(PARTITION), receipts_of(kept))
    assert [] == broken(report)
    assert ["records", "winners", "transactions", "untouched", "horizons"] == unjudged(report)
    held = [check.name for check in report.checks if check.verdict is Verdict.HOLDS]
    assert ["readable", "producers", "indexes", "receipt"] == held


def test_change_after_a_run_in_place_breaks_the_receipt(kept: Path, tmp_path: Path) -> None:
    after = tmp_path / str(PARTITION)
    shutil.copytree(kept / "after" / str(PARTITION), after)
    log = DamagedLog(after)
    log.change(21, value=b"a9")
    log.save()
    report = verifier().verify_in_place(after, receipts_of(kept))
    assert ["receipt"] == broken(report)
    (finding,) = report.check("receipt").findings
    assert 0 == finding.offset
    assert "CRC-32C" in finding.problem


def test_lost_batch_breaks_receipt_and_producers(kept: Path, tmp_path: Path) -> None:
    after = tmp_path / str(PARTITION)
    shutil.copytree(kept / "after" / str(PARTITION), after)
    log = DamagedLog(after)
    log.drop(22)
    log.drop(16)
    log.save()
    report = verifier(now_ms=SECOND_MS).verify_in_place(after, receipts_of(kept)[:1])
    assert ["producers", "receipt"] == broken(report)
    assert 22 == report.check("producers").findings[0].offset


def test_receipt_of_other_files_is_said(kept: Path, tmp_path: Path) -> None:
    other = make_pair(tmp_path, now_ms=SECOND_MS)
    log = DamagedLog(other.before)
    log.drop(27)
    log.save()
    report = verifier().verify_pair(
        other.before, kept / "after" / str(PARTITION), receipts_of(kept)
    )
    assert "receipt" in broken(report)
    assert BOUND == report.check("receipt").findings[0].offset


def test_receipt_names_checksums_and_producers(kept: Path) -> None:
    first, second = receipts_of(kept)
    assert [True, True, True, False] == [s.crc32c is not None for s in first.inputs]
    assert all(s.crc32c is not None for s in (*first.outputs, *second.outputs))
    assert first.outputs[0].crc32c == second.inputs[0].crc32c
    assert first.producers is not None
    assert [7, 8, 9] == [producer_id for producer_id, _, _ in first.producers]


def test_receipt_cut_off_by_a_crash_is_left_out(kept: Path, tmp_path: Path) -> None:
    whole = (kept / "receipt").read_bytes()
    (tmp_path / "cut").write_bytes(whole[:-20])
    assert 1 == len(read_receipts(tmp_path / "cut", LocalFiles()))


@pytest.mark.parametrize("content", [b"", b"{}\n", b"[1]\n", b"\xff\n", b'{"version": 9}\n'])
def test_file_that_is_no_receipt_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "receipt"
    path.write_bytes(content)
    with pytest.raises(InvalidError):
        read_receipts(path, LocalFiles())


def test_records_after_the_end_of_a_round_must_stay(kept: Path) -> None:
    """A round whose key map filled at 15 may not have dropped what came after."""
    (first, second) = receipts_of(kept)
    before, after = (kept / name / str(PARTITION) for name in ("before", "after"))
    short = replace(second, end_offset=15)
    report = verifier().verify_pair(before, after, [first, short])
    assert ["untouched"] == broken(report)
    assert {19, 20} == {finding.offset for finding in report.check("untouched").findings}


@pytest.fixture
def pair(tmp_path: Path) -> CleanedPair:
    return make_pair(tmp_path)


def test_younger_than_the_lag_must_not_be_touched(pair: CleanedPair) -> None:
    topic = replace(TOPIC, min_compaction_lag_ms=SECOND_MS - START_MS - 18)
    report = verifier(topic=topic, now_ms=SECOND_MS).verify_pair(pair.before, pair.after)
    assert "untouched" in broken(report)
    assert [20, 19] == [finding.offset for finding in report.check("untouched").findings]
    unknown = verifier(topic=topic).verify_pair(pair.before, pair.after)
    assert "untouched" in unjudged(unknown)


@pytest.mark.parametrize("log_start", [0, 7])
def test_empty_logs_hold(tmp_path: Path, log_start: int) -> None:
    before, after = (tmp_path / name / str(PARTITION) for name in ("before", "after"))
    for place in (before, after):
        place.mkdir(parents=True)
        (place.parent / LOG_START_CHECKPOINT).write_bytes(encode_offsets({PARTITION: log_start}))
    for report in (
        verifier().verify_pair(before, after),
        verifier().verify_replicas(before, after),
    ):
        assert Verdict.HOLDS is report.verdict, encode(report)


def test_log_that_has_lost_all_its_segments_is_broken(tmp_path: Path) -> None:
    pair = make_pair(tmp_path / "made")
    empty = tmp_path / "empty" / str(PARTITION)
    empty.mkdir(parents=True)
    report = verifier(now_ms=SECOND_MS).verify_pair(pair.before, empty)
    assert {"winners", "untouched"} <= set(broken(report)), encode(report)
    (empty / f"{0:020d}.log.deleted").touch()
    assert ["readable"] == broken(verifier().verify_pair(pair.before, empty))


def test_replicas_cleaned_at_different_times_hold(tmp_path: Path) -> None:
    early = make_pair(tmp_path / "early")
    late = make_pair(tmp_path / "late", now_ms=LATE_MS)
    for first, second in (
        (early.before, early.after),
        (early.after, late.after),
        (late.after, early.before),
    ):
        report = verifier().verify_replicas(first, second)
        assert Verdict.HOLDS is report.verdict, encode(report)


def test_replica_that_lags_holds(pair: CleanedPair) -> None:
    log = DamagedLog(pair.before)
    log.segments[BOUND].clear()
    log.save()
    report = verifier().verify_replicas(pair.after, pair.before)
    assert Verdict.HOLDS is report.verdict, encode(report)
    assert "the logs end at 28 and 24" in report.notes


def test_replicas_that_differ_in_a_value_or_lack_one_are_broken(pair: CleanedPair) -> None:
    log = DamagedLog(pair.after)
    log.change(14, value=b"another")
    log.drop(21)
    log.segments[BOUND].pop(0)
    log.save()
    report = verifier().verify_replicas(pair.before, pair.after)
    assert ["records", "winners"] == broken(report)
    assert (14, b"b") == (
        report.check("records").findings[0].offset,
        report.check("records").findings[0].key,
    )
    assert {14, 24} == {finding.offset for finding in report.check("winners").findings}


def test_damaged_log_before_cleaning_leaves_nothing_to_judge(pair: CleanedPair) -> None:
    path = pair.before / f"{0:020d}.log"
    flip(path, 70)
    report = verifier(now_ms=SECOND_MS).verify_pair(pair.before, pair.after)
    assert {Verdict.UNJUDGED} == {check.verdict for check in report.checks}
    assert "crc mismatch" in report.checks[0].reasons[0]


def test_old_formats_hold_after_conversion(tmp_path: Path) -> None:
    log = ScenarioLog(tmp_path / "data", TOPIC)
    for magic, codec in ((0, Codec.NONE), (1, Codec.GZIP), (1, Codec.NONE)):
        base = log.log_end
        records = [
            Record(base + i, START_MS + i if magic else -1, key, b"v%d" % (base + i))
            for i, key in enumerate((b"a", b"b", b"%d" % base))
        ]
        log.add(encode_message_set(records, magic=magic, codec=codec))
    log.finish()
    before = tmp_path / "before" / str(PARTITION)
    shutil.copytree(log.directory, before)
    log.clean()
    report = verifier(now_ms=log.now_ms).verify_pair(before, log.directory)
    assert Verdict.HOLDS is report.verdict, encode(report)


def test_memory_that_is_too_small_for_the_log_changes_nothing(tmp_path: Path) -> None:
    log = ScenarioLog(tmp_path / "data", replace(TOPIC, delete_retention_ms=DAY_MS))
    for start in range(0, 6000, 100):
        log.append(*(_numbered(start + i) for i in range(100)))
    log.finish()
    before = tmp_path / "before" / str(PARTITION)
    shutil.copytree(log.directory, before)
    log.clean()
    report = verifier(now_ms=log.now_ms, memory_bytes=1, temporary=tmp_path).verify_pair(
        before, log.directory
    )
    assert Verdict.HOLDS is report.verdict, encode(report)
    damaged = DamagedLog(log.directory)
    damaged.lose(5999)
    damaged.save()
    report = verifier(now_ms=log.now_ms, memory_bytes=1, temporary=tmp_path).verify_pair(
        before, log.directory
    )
    assert ["winners"] == broken(report)
    assert (5999, b"k999") == (
        report.check("winners").findings[0].offset,
        report.check("winners").findings[0].key,
    )
    assert [] == list(tmp_path.glob("keeplast-verify-*"))


def _numbered(number: int) -> NewRecord:
    return NewRecord(b"k%d" % (number % 1000), b"%d" % number, START_MS + number)


def rows_of(*rows: tuple[int, int, int, int, int, int]) -> Rows:
    return np.array(rows, np.int64).reshape(-1, COLUMNS)


def test_sorted_runs_merge_what_does_not_fit(tmp_path: Path) -> None:
    seed = np.random.default_rng(7)
    rows = seed.integers(0, 50, (20_000, COLUMNS), np.int64)
    runs = SortedRuns(tmp_path, 1)
    for start in range(0, len(rows), 700):
        runs.add(rows[start : start + 700])
    pieces = list(runs.merged())
    assert runs.runs > 5
    assert len(pieces) > 1
    order = np.lexsort((rows[:, OFFSET], rows[:, VERSION], rows[:, 1], rows[:, 0]))
    merged = np.concatenate(pieces)
    assert rows[order][:, :4].tolist() == merged[:, :4].tolist()
    assert sorted(rows.tolist()) == sorted(merged.tolist())


def test_final_records_do_not_depend_on_how_rows_are_cut() -> None:
    seed = np.random.default_rng(11)
    rows = seed.integers(0, 9, (400, COLUMNS), np.int64)
    rows[:, FLAGS] = seed.integers(1, 4, 400)
    rows = rows[np.lexsort((rows[:, OFFSET], rows[:, VERSION], rows[:, 1], rows[:, 0]))]
    whole = np.concatenate(list(final_records([rows])))
    for size in (1, 2, 7, 100):
        pieces = [rows[i : i + size] for i in range(0, len(rows), size)]
        assert whole.tolist() == np.concatenate(list(final_records(pieces))).tolist()


def test_final_record_knows_what_is_older_on_each_side() -> None:
    rows = rows_of(
        (1, 2, 0, 3, -1, ON_LEFT),
        (1, 2, 0, 5, -1, ON_LEFT | ON_RIGHT),
        (1, 2, 0, 8, -1, ON_LEFT),
        (1, 2, 0, 9, 70, ON_LEFT | IS_TOMBSTONE),
        (1, 2, 0, 9, -1, ON_RIGHT),
    )
    (found,) = np.concatenate(list(final_records([rows])))
    merged = (found[OFFSET], found[HORIZON], found[FLAGS])
    assert (9, 70, ON_LEFT | ON_RIGHT | IS_TOMBSTONE) == merged
    assert (8, 5) == (found[OLDER_LEFT], found[OLDER_RIGHT])


def test_the_final_record_has_the_greatest_rank_and_not_the_last_offset() -> None:
    """A version, the lower bit of the second column, beats none; then the greater version."""
    rows = rows_of(
        (1, 2, 0, 9, -1, ON_LEFT | ON_RIGHT),
        (1, 3, -7, 8, -1, ON_LEFT),
        (1, 3, 5, 3, -1, ON_LEFT | ON_RIGHT),
        (1, 4, 0, 1, -1, ON_LEFT),
    )
    found = np.concatenate(list(final_records([rows])))
    assert [3, 1] == found[:, OFFSET].tolist()
    assert [(8, 9), (-1, -1)] == list(
        zip(found[:, OLDER_LEFT].tolist(), found[:, OLDER_RIGHT].tolist(), strict=True)
    )


def test_report_is_json(pair: CleanedPair) -> None:
    report = verifier().verify_pair(pair.before, pair.after)
    document = json.loads(json.dumps(encode(report)))
    assert "holds" == document["verdict"]
    assert {"name", "claim", "verdict", "count", "findings", "reasons"} == set(
        document["checks"][0]
    )
