"""A log before a round and after it, with something of everything that ``verify`` looks at.

::

    segment  0   0..2 a b c | 3 gone | 4 tombstone of gone | 5..6 aborted by 7 | 7 its marker
                 8 committed by 8 | 9 its marker | 10 without a key | 11 deleted | 12 its tombstone
    ------------ cleaned once: what is gone is gone, horizons are set ------------------------
    segment 13   13 a | 14..15 b d | 16 sent by 9 | 17 aborted by 7 | 18 its marker
    segment 19   19 e | 20 its tombstone | 21 a | 22 by 9 | 23 a tail that is superseded at once
    segment 24   24 a | 25 aborted by 7 | 26 its marker | 27 f          active: not to be touched
"""

from __future__ import annotations

import shutil
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from keeplast.format import txn_index
from keeplast.format.compression import Codec
from keeplast.format.filename import TXN_INDEX
from keeplast.format.txn_index import AbortedTransaction
from keeplast.inspect.verified_log import VerificationReport
from keeplast.log.append import NewRecord
from keeplast.model.document import Verdict
from keeplast.survey.report import RoundReport
from tests.support.damaged_log import reindex
from tests.support.log_builder import START_MS, Sender
from tests.support.scenario_log import DAY_MS, SMALL, ScenarioLog

TOPIC = replace(SMALL, segment_bytes=1 << 20, segment_index_bytes=1 << 16, index_interval_bytes=100)
SECOND_MS = START_MS + 1000
"""The clock of the second round: no horizon has passed."""
LATE_MS = START_MS + 2 * DAY_MS
"""A later clock: the horizons of the first round have passed."""
BOUND = 24


class CleanedPair(Struct, frozen=True):
    """Two partition directories, and the report of the round between them."""

    before: Path
    after: Path
    report: RoundReport


def make_pair(root: Path, *, now_ms: int = SECOND_MS) -> CleanedPair:
    """Make the log below ``root`` and clean it at ``now_ms``."""
    log = ScenarioLog(root / "data", TOPIC)
    log.leader_epoch = 3
    _write_first(log)
    log.clean()
    _write_second(log)
    log.close()
    reindex(log.directory)
    # The appender of these tests writes it when it closes a segment, a broker with the marker.
    ended = txn_index.encode([AbortedTransaction(7, 25, 26, 27)])
    log.path(BOUND, TXN_INDEX).write_bytes(ended)
    before = root / "before" / log.directory.name
    shutil.copytree(log.directory, before)
    report = log.clean(now_ms=now_ms)
    return CleanedPair(before, log.directory, report)


def new(key: bytes | None, value: bytes | None, at: int) -> NewRecord:
    """Return a record with a timestamp of its own and two headers."""
    return NewRecord(key, value, START_MS + at, ((b"trace", b"%d" % at), (b"null", None)))


def _write_first(log: ScenarioLog) -> None:
    log.append(new(b"a", b"a0", 0), new(b"b", b"b0", 1), new(b"c", b"c0", 2), codec=Codec.LZ4)
    log.append(new(b"gone", b"g0", 3))
    log.append(new(b"gone", None, 4))
    seventh, eighth = log.producer(7), log.producer(8)
    seventh.send_records(new(b"x", b"x0", 5), new(b"c", b"c1", 6))
    seventh.abort()
    eighth.send_records(new(b"y", b"y0", 8))
    eighth.commit()
    log.append(new(None, b"no key", 10))
    log.append(new(b"deleted", b"d0", 11))
    log.append(new(b"deleted", None, 12))
    log.roll()


def _write_second(log: ScenarioLog) -> None:
    seventh = Sender(7, 0, 2, True)
    log.append(new(b"a", b"a1", 13))
    log.append(new(b"b", b"b1", 14), new(b"d", b"d1", 15), codec=Codec.ZSTD)
    log.append(new(b"z", b"z0", 16), sender=Sender(9, 2, 0))
    log.append(new(b"x", b"x1", 17), sender=seventh)
    _abort(log)
    log.roll()
    log.append(new(b"e", b"e0", 19))
    log.append(new(b"e", None, 20))
    log.append(new(b"a", b"a2", 21))
    log.append(new(b"w", b"w0", 22), sender=Sender(9, 2, 1))
    log.append(new(b"tail", b"t0", 23))
    log.roll()
    log.append(new(b"a", b"a3", 24))
    log.append(new(b"x", b"x2", 25), sender=replace(seventh, sequence=3))
    _abort(log)
    log.append(new(b"f", b"f0", 27))


def _abort(log: ScenarioLog) -> None:
    log.producer(7).abort()


def broken(report: VerificationReport) -> list[str]:
    """Return the names of the checks that do not hold."""
    return [check.name for check in report.checks if check.verdict is Verdict.BROKEN]
