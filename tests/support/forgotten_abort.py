"""A log of which a broker forgot an open transaction: what Kafka 4.3.0 has uploaded once."""

from __future__ import annotations

from pathlib import Path

from keeplast.format import producer_snapshot
from keeplast.format.filename import SNAPSHOT, TXN_INDEX, segment_file
from keeplast.format.record import ControlType
from keeplast.log.append import NewRecord
from keeplast.model.topic_config import TopicConfig
from tests.support.log_builder import LogBuilder

ABORTED = b"aborted"
PRODUCER = 7


def write_forgotten_abort(
    directory: Path, topic: TopicConfig, *, outcome: ControlType = ControlType.ABORT,
    transactions: bool = True, names: bool = False, between: int = 0, before: int = 0,
    segments_behind: int = 4,
) -> tuple[int, int]:  # fmt: skip
    """Write a log with the marker of a transaction in the segment behind the one where it began.

    Unless it ``names`` the abort, the marker's index does not; of segments ``between`` the two the
    snapshots behind them know no producer. Without ``transactions`` there is none. ``before``
    segments are ahead of both. Return the transaction's first offset and its marker's.
    """
    log = LogBuilder(directory, topic)
    sender = log.producer(PRODUCER)

    def fill(count: int) -> None:
        for number in range(count):
            log.now_ms += 1000
            log.append(NewRecord(b"k%d" % (number % 5), b"v" * 40, log.now_ms))

    for _ in range(before):
        fill(10)
        log.roll()
    fill(10)
    first = log.log_end
    if transactions:
        sender.send_records(NewRecord(ABORTED, b"never", log.now_ms))
    fill(5)
    log.roll()
    forgetful = []
    for _ in range(between):
        fill(5)
        forgetful.append(log.roll())
    last = log.log_end
    fill(5)
    marker = log.marker(outcome, producer_id=PRODUCER) if transactions else -1
    fill(5)
    for _ in range(segments_behind):
        log.roll()
        fill(10)
    log.finish()
    for base in forgetful:
        (directory / segment_file(base, SNAPSHOT)).write_bytes(producer_snapshot.encode([]))
    if transactions and outcome is ControlType.ABORT and not names:
        (directory / segment_file(last, TXN_INDEX)).unlink()
    return first, marker
