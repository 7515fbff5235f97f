"""The findings of a store's verification, and the report that is made of them.

The rule: a check *holds* only where it could look at everything that it is about.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from keeplast.format.filename import LOG
from keeplast.inspect.receipt_groups import Print, rounds_behind, rounds_within
from keeplast.inspect.verdicts import Findings, VerificationReport
from keeplast.model.partition import TopicPartition
from keeplast.model.verdict import JudgedBy
from keeplast.survey.receipt_book import RoundReceipt
from keeplast.tier.objects.object_store import FILTER
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.segment import RemoteSegment

METADATA = "metadata"
"""In place of an invariant: a row is not what keeplast has written."""
CLAIMS = {
    METADATA: "every row is as keeplast wrote it",
    "I-1": "batches and routes lie within their segments, in the order of offsets",
    "I-5": "every batch can be read and has the right checksum",
    "I-6": "every segment ends with its last batch",
    "I-8": "the transaction indexes name what was aborted, and nothing else",
    "I-9": "objects are as they were written, and the indexes lead to the batches that they name",
    "I-14": "every offset is served by one live segment, whose objects are there",
    "I-18": "the first dirty offset lies in the log",
    "I-21": "sizes and timestamps in rows are those of the logs",
    "I-23": "segments belong to the leader epochs of the log",
}
"""What is judged, by invariant."""
OF_THE_PARTITION = frozenset({METADATA, "I-18"})
"""Checks that look into no segment."""
JUDGED_BY = "verify of a store"


@dataclass(frozen=True, slots=True)
class TierFinding:
    """Something that is not as it must be; ``problem`` says all of it in a sentence.

    ``object_key`` and ``offset`` are where an object is wrong. Of a row that is, ``table`` and
    ``row_key``, which tells it from the partition's others there. None where it is about neither.
    """

    invariant: str
    segment_id: str | None
    problem: str
    object_key: str | None = None
    offset: int | None = None
    table: str | None = None
    row_key: str | None = None

    @property
    def where(self) -> dict[str, str]:
        """Return where it is, by what documents call each."""
        named = {
            "segment": self.segment_id, "object": self.object_key, "table": self.table,
            "row": self.row_key,
        }  # fmt: skip
        return {name: text for name, text in named.items() if text is not None}

    @property
    def hides_objects(self) -> bool:
        """Return whether what an object says of the log could not be looked at."""
        key = self.object_key
        is_of_log = key is not None and not key.endswith(FILTER)
        return is_of_log and self.invariant in ("I-5", "I-9", "I-14")


@dataclass(frozen=True, slots=True)
class TierJudgement:
    """What is wrong with a partition, and of what that is said.

    ``segments`` were live before they were read and, where something was found, behind it too.
    Without a ``state`` rows could not be read, and there are none.
    """

    partition: TopicPartition
    findings: tuple[TierFinding, ...]
    segments: tuple[RemoteSegment, ...] = ()
    state: PartitionState | None = None
    unread: int = 0

    def report(self, receipts: Sequence[RoundReceipt] = ()) -> VerificationReport:
        """Return a check for each invariant; a check that could not look at everything says so.

        The report names those of ``receipts``, all of the partition, that what is live has come of.
        """
        checks = {name: Findings() for name in CLAIMS}
        for each in self.findings:
            checks[each.invariant].add_at(each.problem, each.offset, each.where)
        for name, found in checks.items():
            if not found.count:
                found.reasons += self._unseen(name)
        live = {
            each.base_offset: Print(each.size_bytes, each.files[LOG].crc32c)
            for each in self.segments
            if LOG in each.files
        }
        # What was replaced is not what is broken.
        rounds = (rounds_within if self.findings else rounds_behind)(receipts, live)
        state = self.state
        return VerificationReport(
            str(self.partition),
            tuple(found.check(name, CLAIMS[name]) for name, found in checks.items()),
            rounds=tuple(each.name for each in rounds),
            judged_by=None
            if state is None
            else JudgedBy(JUDGED_BY, state.leader_epoch, state.first_dirty()),
        )

    def _unseen(self, name: str) -> Iterator[str]:
        """Yield why a check has not looked at everything."""
        if name == METADATA:
            return
        if self.state is None:
            yield "rows of the partition cannot be read: see check metadata"
        elif self.unread and name not in OF_THE_PARTITION:
            yield f"rows of segments cannot be read: see check metadata. segments={self.unread}"
        damaged = {each.segment_id for each in self.findings if each.hides_objects}
        if damaged and name not in OF_THE_PARTITION:
            yield f"objects of segments are gone or damaged. segments={len(damaged)}"
