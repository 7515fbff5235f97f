"""Every kind of damage to a cleaned log, and what ``verify`` calls it.

The log is made by tests/support/cleaned_pair.py, cleaned by the engine, then damaged in one way.
Each case names the checks that must be broken, no others, and what the first of them must say.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from keeplast.format import offset_index, time_index, txn_index
from keeplast.format.batch import encode_batch
from keeplast.format.filename import INDEX, LOG, TIME_INDEX, TXN_INDEX, Kind, segment_file
from keeplast.format.record import ControlType, EndTransactionMarker, Record, encode_end_transaction
from keeplast.inspect.verification import Verifier, VerifySettings
from keeplast.inspect.verified_log import VerificationReport
from keeplast.log.files import LocalFiles
from keeplast.model.document import Verdict, encode
from tests.support.cleaned_pair import (
    BOUND,
    LATE_MS,
    SECOND_MS,
    TOPIC,
    CleanedPair,
    broken,
    make_pair,
)
from tests.support.damaged_log import DamagedLog, remade
from tests.support.log_builder import START_MS

Damage = Callable[[DamagedLog, DamagedLog], None]
"""Takes the log after cleaning, to be damaged, and the log before it, to copy from."""


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> CleanedPair:
    """The log that every test of this file damages a copy of."""
    return make_pair(tmp_path_factory.mktemp("pair"))


def judged(pair: CleanedPair, after: Path, now_ms: int | None = SECOND_MS) -> VerificationReport:
    settings = VerifySettings(topic=TOPIC, now_ms=now_ms)
    return Verifier(LocalFiles(), settings).verify_pair(pair.before, after)


def swap(after: DamagedLog, before: DamagedLog) -> None:
    batches = after.segments[0]
    batches[-1], batches[-2] = batches[-2], batches[-1]


def invent(after: DamagedLog, before: DamagedLog) -> None:
    record = Record(10, START_MS, b"new", b"n")
    after.put_behind(9, encode_batch([record], leader_epoch=3))


def twice(after: DamagedLog, before: DamagedLog) -> None:
    after.put_behind(21, bytes(after.batch(21).data))


def shift(after: DamagedLog, before: DamagedLog) -> None:
    """Move the record of offset 12 to 11, which cleaning had freed."""
    moved = remade(after.batch(12), lambda r: replace(r, offset=11), base_offset=11, last_offset=11)
    base, index = after.find(12)
    after.segments[base][index] = moved


def resurrect(after: DamagedLog, before: DamagedLog) -> None:
    """The value at 21 of key a goes, and that at 13 is final again."""
    after.drop(21)
    after.put_behind(12, bytes(before.batch(13).data))


def bring_deleted_back(after: DamagedLog, before: DamagedLog) -> None:
    """Key e: its tombstone at 20 goes, and the value at 19 is back."""
    after.drop(20)
    after.put_behind(18, bytes(before.batch(19).data))


def show_aborted(after: DamagedLog, before: DamagedLog) -> None:
    (after.directory / segment_file(BOUND, TXN_INDEX)).write_bytes(b"")


def hide_committed(after: DamagedLog, before: DamagedLog) -> None:
    path = after.directory / segment_file(0, TXN_INDEX)
    entry = txn_index.AbortedTransaction(8, 8, 9, 10)
    path.write_bytes(txn_index.encode([*txn_index.decode(path.read_bytes()), entry]))


def flip(after: DamagedLog, before: DamagedLog) -> None:
    """The abort of producer 7 reads as a commit, in the segment that may not be touched."""
    key, value = encode_end_transaction(EndTransactionMarker(ControlType.COMMIT, 0))
    after.change(26, key=key, value=value)


def drop_header(after: DamagedLog, before: DamagedLog) -> None:
    after.change(21, headers=((b"trace", b"21"),))


def change_header(after: DamagedLog, before: DamagedLog) -> None:
    after.change(21, headers=((b"trace", b"12"), (b"null", None)))


def swap_headers(after: DamagedLog, before: DamagedLog) -> None:
    after.change(21, headers=((b"null", None), (b"trace", b"21")))


RECORD_DAMAGES: list[tuple[str, Damage, list[str], str, int]] = [
    ("winner dropped", lambda a, b: a.drop(21), ["winners"], "final record is missing", 21),
    (
        "winner lost from its batch",
        lambda a, b: a.lose(14),
        ["winners"],
        "final record is missing or changed",
        14,
    ),
    ("old value resurrected", resurrect, ["winners"], "missing or changed, 13 is final", 21),
    (
        "tombstone gone before it had a horizon",
        lambda a, b: a.drop(20),
        ["horizons"],
        "it had no delete horizon yet",
        20,
    ),
    (
        "tombstone gone before its horizon",
        lambda a, b: a.drop(12),
        ["horizons"],
        "its delete horizon is",
        12,
    ),
    ("marker gone early", lambda a, b: a.drop(9), ["transactions", "horizons"],
     "was committed and reads as open", 8),
    ("marker of an abort gone early", lambda a, b: a.drop(7), ["horizons"],
     "the transaction marker is gone", 7),
    ("deleted key back", bring_deleted_back, ["winners", "horizons"], "deleted key is back", 19),
    ("offset shifted", shift, ["records", "horizons"], "there was no such record", 11),
    ("header lost", drop_header, ["records"], "headers changed", 21),
    ("header changed", change_header, ["records"], "headers changed", 21),
    ("headers in another order", swap_headers, ["records"], "headers changed", 21),
    ("timestamp changed", lambda a, b: a.change(21, timestamp=START_MS + 20), ["records"],
     "timestamp changed", 21),
    ("key changed", lambda a, b: a.change(21, key=b"A"), ["records", "winners"], "key changed", 21),
    ("value changed", lambda a, b: a.change(21, value=b"a9"), ["records", "winners"],
     "value changed", 21),
    ("value became null", lambda a, b: a.change(21, value=None), ["records", "winners"],
     "value changed", 21),
    ("order swapped", swap, ["records", "indexes"], "out of order", 22),
    ("batch twice", twice, ["records"], "comes twice", 21),
    ("record invented", invent, ["records"], "there was no such record", 10),
    ("aborted record shown", show_aborted, ["transactions"], "an aborted record", 25),
    ("committed record hidden", hide_committed, ["transactions"], "is hidden", 8),
    ("abort became commit", flip, ["records", "transactions", "untouched"], "control record", 26),
    ("leader epoch changed", lambda a, b: a.remake(21, leader_epoch=4), ["records"],
     "leader epoch of the batch changed from 3 to 4", 21),
    ("producer id changed", lambda a, b: a.remake(22, producer_id=10), ["records"],
     "producer id of the batch changed from 9 to 10", 22),
    ("producer epoch changed", lambda a, b: a.remake(22, producer_epoch=3), ["records"],
     "producer epoch of the batch changed from 2 to 3", 22),
    ("sequence changed", lambda a, b: a.remake(22, base_sequence=5), ["records"],
     "base sequence of the batch changed from 1 to 5", 22),
    ("transactional flag lost", lambda a, b: a.remake(8, is_transactional=False), ["records"],
     "transactional flag", 8),
    ("last offset of a batch changed", lambda a, b: a.remake(2, last_offset=3), ["records"],
     "last offset of the batch changed from 2 to 3", 0),
    ("delete horizon moved", lambda a, b: a.remake(12, delete_horizon_ms=START_MS), ["records"],
     "the delete horizon moved", 12),
    ("greatest timestamp changed", lambda a, b: a.remake(21, max_timestamp=START_MS + 99),
     ["records"], "greatest timestamp changed", 21),
    ("batch above the bound changed", lambda a, b: a.change(27, value=b"f9"),
     ["records", "untouched"], "value changed", 27),
    ("batch above the bound rewritten", lambda a, b: a.remake(27, codec=1),
     ["records", "untouched"], "codec", 27),
    ("batch above the bound missing", lambda a, b: a.drop(24), ["untouched"], "is missing", 24),
    ("last batch of a producer lost", lambda a, b: a.drop(22), ["winners", "producers"],
     "final record is missing", 22),
    ("last batch of the round lost", lambda a, b: a.drop(23), ["winners", "producers"],
     "final record is missing", 23),
]  # fmt: skip


@pytest.fixture
def after(tmp_path: Path, pair: CleanedPair) -> Path:
    return tmp_path / pair.after.name


@pytest.mark.parametrize(
    ("damage", "checks", "words", "offset"),
    [case[1:] for case in RECORD_DAMAGES],
    ids=[case[0] for case in RECORD_DAMAGES],
)
def test_damage_is_called_by_its_name(
    damage: Damage, checks: list[str], words: str, offset: int, pair: CleanedPair, after: Path
) -> None:
    shutil.copytree(pair.after, after)
    log = DamagedLog(after)
    damage(log, DamagedLog(pair.before))
    log.save()
    report = judged(pair, after)
    assert checks == broken(report), encode(report)
    first = report.check(checks[0]).findings[0]
    assert words in first.problem, first
    assert offset == first.offset


def test_undamaged_log_holds_in_every_check(pair: CleanedPair) -> None:
    report = judged(pair, pair.after)
    assert {Verdict.HOLDS} == {check.verdict for check in report.checks}, encode(report)


def test_finding_names_the_key(pair: CleanedPair, after: Path) -> None:
    shutil.copytree(pair.after, after)
    log = DamagedLog(after)
    log.drop(21)
    log.save()
    (finding,) = judged(pair, after).check("winners").findings
    assert (21, b"a") == (finding.offset, finding.key)


def test_missing_segment_is_lost_records_and_touched_batches(
    pair: CleanedPair, after: Path
) -> None:
    shutil.copytree(pair.after, after)
    log = DamagedLog(after)
    log.remove_segment(BOUND)
    log.save()
    report = judged(pair, after)
    assert "untouched" in broken(report)
    missing = [finding.offset for finding in report.check("untouched").findings]
    assert [24, 25, 26, 27] == missing


def test_flipped_bit_is_a_batch_that_cannot_be_read(pair: CleanedPair, after: Path) -> None:
    shutil.copytree(pair.after, after)
    path = after / segment_file(0, LOG)
    data = bytearray(path.read_bytes())
    data[70] ^= 1  # in the records of the first batch
    path.write_bytes(data)
    report = judged(pair, after)
    assert ["readable"] == broken(report)
    assert "crc mismatch" in report.check("readable").findings[0].problem


def test_wrong_index_entries_are_named(pair: CleanedPair, tmp_path: Path) -> None:
    cases: list[tuple[Kind, Any, Any]] = [
        (INDEX, offset_index.decode, offset_index.encode),
        (TIME_INDEX, time_index.decode, time_index.encode),
    ]
    for kind, decode, write in cases:
        after = tmp_path / kind / pair.after.name
        shutil.copytree(pair.after, after)
        path = after / segment_file(0, kind)
        entries = decode(path.read_bytes())
        entries[1, 1] += 1
        path.write_bytes(write(entries))
        report = judged(pair, after)
        assert ["indexes"] == broken(report)
        assert path.name in report.check("indexes").findings[0].problem


def test_transaction_index_with_an_unknown_version_is_broken(
    pair: CleanedPair, after: Path
) -> None:
    shutil.copytree(pair.after, after)
    (after / segment_file(0, TXN_INDEX)).write_bytes(b"\1" * txn_index.ENTRY_BYTES)
    assert "transactions" in broken(judged(pair, after))


def test_expired_tombstones_may_go(tmp_path: Path) -> None:
    pair = make_pair(tmp_path, now_ms=LATE_MS)
    with pytest.raises(AssertionError, match="no batch at offset 4"):
        DamagedLog(pair.after).find(4)
    assert [] == broken(judged(pair, pair.after, LATE_MS))


def test_without_a_clock_what_is_gone_cannot_be_judged(tmp_path: Path) -> None:
    pair = make_pair(tmp_path, now_ms=LATE_MS)
    report = judged(pair, pair.after, None)
    assert Verdict.UNJUDGED is report.check("horizons").verdict
    assert "--now-ms" in report.check("horizons").reasons[0]
    assert [] == broken(report)
