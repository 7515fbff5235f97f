"""What consumers are given of a log, held against the batches that lie in the remote tier.

Both isolation levels at once, record by record: offset, key, value, timestamp, headers. The rule:
**only its marker shows how a transaction ended**. What a read-committed consumer was given and not
given of it is counted until the marker comes. So memory is one record of each consumer, and the
producers with an open transaction. Answers to ``CompletedFetch``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec import Struct

from keeplast.attach.rules.sources import Range
from keeplast.cluster.topic_records import ConsumedRecord
from keeplast.errors import CorruptError
from keeplast.format.message_set import Batch
from keeplast.format.record import ControlType, Record, decode_control_type
from keeplast.inspect.verified_log import Findings
from keeplast.model.partition import INT64_MAX


class _Reporter:
    """Where findings go; what a reader may see otherwise is no finding."""

    def __init__(
        self, findings: Findings, doubtful: Sequence[Range], compacted: Sequence[Range]
    ) -> None:  # fmt: skip
        self.findings = findings
        self._doubtful = sorted(doubtful)
        self._compacted = sorted(compacted)
        self._is_local = False

    def add(self, problem: str, offset: int, key: bytes | None = None) -> None:
        """Report a record that is missing, or another one."""
        if _holds(self._doubtful, offset):
            self.findings.cannot_judge(
                "some offsets lie in two segments, and readers may be given either"
            )
            return
        self.findings.add(problem, offset=offset, key=key)

    def add_more(self, problem: str, offset: int, key: bytes | None) -> None:
        """Report a record that is given and is not in the objects.

        Brokers serve what they still have locally, and that is not compacted.
        """
        if not _holds(self._compacted, offset):
            self.add(problem, offset, key)
        elif not self._is_local:
            self._is_local = True
            self.findings.cannot_judge(
                f"from offset {offset} on consumers are given more than what is compacted has: "
                "brokers seem to have it locally still (local.retention), so that this says "
                "nothing of the objects"
            )


class _Consumer:
    """One consumer, which is asked for ascending offsets."""

    def __init__(self, records: Iterator[ConsumedRecord], reporter: _Reporter, level: str) -> None:
        self.is_over = False
        self._records = records
        self._reporter = reporter
        self._level = level
        self._head: ConsumedRecord | None = None
        self._next()

    def _next(self) -> None:
        try:
            self._head = next(self._records, None)
        except CorruptError as error:
            self._head = None
            self.is_over = True
            self._reporter.findings.add(f"{self._level}: {error}")
            self._reporter.findings.cannot_judge(
                "after that a consumer was given nothing to compare"
            )

    def take(self, offset: int) -> ConsumedRecord | None:
        """Return the record at ``offset``, None when it is not given; report those before."""
        self.pass_to(offset - 1, is_reported=True)
        found = self._head
        if found is None or found.offset != offset:
            return None
        self._next()
        return found

    def pass_to(self, last: int, *, is_reported: bool) -> None:
        """Pass the records up to ``last``, inclusive."""
        while self._head is not None and self._head.offset <= last:
            if is_reported:
                self._reporter.add_more(
                    f"a {self._level} consumer is given a record that the objects have not",
                    self._head.offset, self._head.key,
                )  # fmt: skip
            self._next()


class _Open(Struct):
    """What a read-committed consumer was given of a producer's transaction so far."""

    given: int = 0
    kept: int = 0
    first_given: int = -1
    first_kept: int = -1

    def add(self, offset: int, *, is_given: bool) -> None:
        if is_given:
            self.first_given = offset if not self.given else self.first_given
            self.given += 1
        else:
            self.first_kept = offset if not self.kept else self.first_kept
            self.kept += 1


@dataclass(slots=True)
class GivenRecords:
    """Two consumers that began where the log begins; their records ascend.

    ``compacted`` are offsets of segments that a compactor wrote; of ``doubtful`` ones it depends on
    the reader which copy he is given.
    """

    uncommitted: Iterator[ConsumedRecord]
    committed: Iterator[ConsumedRecord]
    records: Findings
    transactions: Findings
    doubtful: Sequence[Range] = ()
    compacted: Sequence[Range] = ()
    count: int = 0
    """Records that were compared."""
    _open: dict[int, _Open] = field(default_factory=dict)
    _readers: tuple[_Consumer, _Consumer] = field(init=False)
    _record_reporter: _Reporter = field(init=False)
    _transaction_reporter: _Reporter = field(init=False)

    def __post_init__(self) -> None:
        """Ask both for their first record."""
        self._record_reporter = _Reporter(self.records, self.doubtful, self.compacted)
        self._transaction_reporter = _Reporter(self.transactions, self.doubtful, self.compacted)
        self._readers = (
            _Consumer(self.uncommitted, self._record_reporter, "read-uncommitted"),
            _Consumer(self.committed, self._transaction_reporter, "read-committed"),
        )

    def add(self, batch: Batch, first: int, last: int) -> None:
        """Compare offsets ``[first, last]`` of a batch of the objects.

        CorruptError when its records cannot be read.
        """
        if batch.is_control:
            for record in batch.records():
                if first <= record.offset <= last:
                    self._pass_to(record.offset, is_reported=True)
                    self._end(batch.producer_id, record)
            return
        for record in batch.records():
            if first <= record.offset <= last:
                self.count += 1
                self._compare(record, batch)
        self._pass_to(min(batch.last_offset, last), is_reported=True)

    def skip_to(self, last: int) -> None:
        """Leave out what consumers are given up to ``last``: the objects cannot be read there."""
        self._open.clear()
        self._pass_to(last, is_reported=False)

    def finish(self, last: int) -> None:
        """End at ``last``, inclusive: of transactions without a marker all is given, or nothing."""
        self._pass_to(last, is_reported=True)
        for producer_id, each in self._open.items():
            if each.given and each.kept:
                self._transaction_reporter.add(
                    f"a read-committed consumer is given a part of a transaction of producer "
                    f"{producer_id}", each.first_kept,
                )  # fmt: skip

    def _pass_to(self, last: int, *, is_reported: bool) -> None:
        for each in self._readers:
            each.pass_to(last, is_reported=is_reported)

    def _compare(self, record: Record, batch: Batch) -> None:
        uncommitted, committed = self._readers
        reporter = self._record_reporter
        found = uncommitted.take(record.offset)
        if found is not None:
            _report_differences(record, found, reporter)
        elif not uncommitted.is_over:
            reporter.add("a record of the objects is not given to a consumer", record.offset,
                     record.key)  # fmt: skip
        found = committed.take(record.offset)
        if committed.is_over:
            return
        if found is not None:
            _report_differences(record, found, self._transaction_reporter)
        if batch.is_transactional:
            of = self._open.setdefault(batch.producer_id, _Open())
            of.add(record.offset, is_given=found is not None)
        elif found is None:
            self._transaction_reporter.add(
                "a record outside of transactions is not given to a read-committed consumer",
                record.offset, record.key,
            )  # fmt: skip

    def _end(self, producer_id: int, marker: Record) -> None:
        kind = decode_control_type(marker.key)
        if kind not in (ControlType.ABORT, ControlType.COMMIT):
            return
        ended = self._open.pop(producer_id, None)
        if ended is None:
            return
        if kind is ControlType.COMMIT and ended.kept:
            self._transaction_reporter.add(
                f"{ended.kept} committed records of producer {producer_id} are not given to a "
                "read-committed consumer", ended.first_kept,
            )  # fmt: skip
        if kind is ControlType.ABORT and ended.given:
            self._transaction_reporter.add(
                f"{ended.given} aborted records of producer {producer_id} are given to a "
                "read-committed consumer", ended.first_given,
            )  # fmt: skip


def _report_differences(ours: Record, theirs: ConsumedRecord, reporter: _Reporter) -> None:
    pairs: list[tuple[str, object, object]] = [
        ("key", ours.key, theirs.key),
        ("value", ours.value, theirs.value),
        ("timestamp", ours.timestamp, theirs.timestamp),
    ]
    if theirs.headers is not None and (ours.headers or theirs.headers):
        # The client hands names out as text, up to a NUL.
        names = tuple(
            (name.partition(b"\0")[0].decode("utf-8", "replace"), value)
            for name, value in ours.headers
        )
        pairs.append(("headers", names, theirs.headers))
    differing = [name for name, mine, given in pairs if mine != given]
    if differing:
        reporter.add(
            f"a consumer is given another {' and '.join(differing)} than the objects have",
            ours.offset, ours.key,
        )  # fmt: skip


def _holds(ranges: Sequence[Range], offset: int) -> bool:
    """Say whether one of ``ranges``, which are sorted, has ``offset``."""
    place = bisect_right(ranges, (offset, INT64_MAX)) - 1
    return place >= 0 and ranges[place][1] >= offset
