"""What a run says afterwards: the numbers of every round, and of every failure.

The field names are the JSON document's; ``as_document`` says what is shown in another way.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from keeplast.cleaner.dirty_section import Dating
from keeplast.cleaner.reasons import SkipReason
from keeplast.errors import CorruptError, code_of, error_text
from keeplast.model.document import document_of, shown_fields
from keeplast.model.partition import TopicPartition
from keeplast.rewrite.stats import FilterStats, Reasons, Stats, add_counters
from keeplast.survey.notes import Note
from keeplast.survey.wording import reason_code, sentences, skip_words


class Estimate(Struct, frozen=True):
    """What a round would bring, from a sample of the log; the sample's own size alone is exact.

    Names are those of :class:`Stats` and :class:`Reasons`. None where the sample was too small to
    say anything. ``key_map_bytes`` is the memory that the key map takes, ``seconds`` the time on
    one core, without waiting for the disk; ``index_seconds`` of them are the first pass.
    """

    sampled_bytes: int
    sampled_records: int
    messages_read: int
    messages_written: int | None
    bytes_read: int
    bytes_written: int | None
    tombstones_read: int
    tombstones_written: int | None
    superseded_records: int | None
    tombstone_records: int | None
    aborted_records: int
    keyless_records: int
    distinct_keys: int | None
    key_map_bytes: int | None
    index_seconds: float
    seconds: float


class GroupReport(Struct, frozen=True):
    """One group of a plan: the base offsets and byte sizes of its sources."""

    bases: tuple[int, ...]
    bytes: int


class ErrorReport(Struct, frozen=True):
    """Why a partition's round failed."""

    error_class: str
    message: str
    path: str | None = None
    position: int | None = None
    code: str | None = None

    def as_document(self) -> dict[str, object]:
        """Return what the document shows."""
        return {"class": self.error_class, **shown_fields(self, "error_class")}


class RoundReport(Struct, frozen=True):
    """One round of one partition.

    ``uncleanable`` is the first uncleanable offset before, ``bound`` after rounding down to a
    segment base; all offsets are exclusive ends but ``first_dirty``. ``end_offset`` is the next
    first dirty offset; None when nothing was decided. ``cause`` is why
    there was no round, ``remarks`` are what limited it; ``reason`` and ``notes`` say both in words.
    ``dating`` counts the dirty segments whose dates cannot be taken for their age.
    ``is_expired_round``: only what had expired was removed, and the checkpoint stays.
    ``shape`` is how the work was or would be cut, with ``buckets`` where it has any.
    ``chunks`` is how many parts of the dirty section were cleaned one after another, and
    ``filters`` what filters did; both are of rounds on the tier only. ``stats`` add chunks up, and
    ``last_chunk`` is what the last of several did, which no document shows.
    Only a plan that is not exact has ``estimate`` and ``disk_bytes``, the free space without which
    the round is refused.
    """

    first_dirty: int | None = None
    uncleanable: int | None = None
    bound: int | None = None
    end_offset: int | None = None
    log_start: int | None = None
    log_end: int | None = None
    last_stable: int | None = None
    clean_bytes: int | None = None
    cleanable_bytes: int | None = None
    ratio: float | None = None
    compaction_delay_ms: int | None = None
    dating: Dating | None = None
    skipped: bool = False
    is_expired_round: bool = False
    cause: SkipReason | None = None
    stats: Stats | None = None
    reasons: Reasons | None = None
    groups: tuple[GroupReport, ...] | None = None
    shape: str | None = None
    buckets: int | None = None
    shape_reason: str | None = None
    disk_bytes: int | None = None
    estimate: Estimate | None = None
    chunks: int | None = None
    filters: FilterStats | None = None
    remarks: tuple[Note, ...] = ()
    error: ErrorReport | None = None
    failure: Exception | None = None
    last_chunk: Stats | None = None

    @property
    def reason(self) -> str | None:
        """Return in words why there was no round; None when there was one."""
        return None if self.cause is None else skip_words(self.cause)

    @property
    def notes(self) -> tuple[str, ...]:
        """Return in words what limited the round."""
        return sentences(self.remarks)

    @property
    def log_bytes(self) -> tuple[int, int] | None:
        """Return the bytes below the end of the round, before and after it; None without a round.

        The bytes that filters let it leave out are among them. So is, once, what each of its chunks
        read and wrote again.
        """
        stats = self.stats
        if stats is None:
            return None
        gone = stats.bytes_read - stats.bytes_written
        if self.has_skipped:
            before = (self.clean_bytes or 0) + (self.cleanable_bytes or 0)
        else:
            before = (self.last_chunk or stats).bytes_written + gone
        return before, before - gone

    @property
    def has_skipped(self) -> bool:
        """True when filters let it leave something out, whose records were not counted."""
        return self.filters is not None and self.filters.skipped_bytes > 0

    def as_document(self) -> dict[str, object]:
        """Return what the document shows: why in words, and the error without its exception."""
        words = {"cause": "reason", "remarks": "notes"}
        return {
            words.get(name, name): getattr(self, words.get(name, name))
            for name in shown_fields(self, "failure", "last_chunk")
        } | {"code": reason_code(self.cause)}


def joined_reports(first: RoundReport, second: RoundReport) -> RoundReport:
    """Return the report of two chunks of one round: the bounds and the reason are the first's."""
    return replace(
        first,
        end_offset=second.end_offset,
        stats=add_counters(first.stats, second.stats),
        last_chunk=second.stats,
        reasons=add_counters(first.reasons, second.reasons),
        groups=(first.groups or ()) + (second.groups or ()),
        filters=add_counters(first.filters, second.filters),
        remarks=(*first.remarks, *(n for n in second.remarks if n not in first.remarks)),
    )


class ExpiredReport(Struct, frozen=True):
    """A segment that expired: its base offset and bytes, the rule, and why in words.

    ``rule`` is ``log_start``, ``size`` or ``time``; ``newest_ms`` is the time that rule ``time``
    looks at: the largest timestamp, or the file's time where no record has one.
    """

    base: int
    bytes: int
    newest_ms: int | None
    rule: str
    why: str


class ExpiryReport(Struct, frozen=True):
    """What went of one partition by retention and log start offset, or would go.

    ``log_start`` is the first readable offset afterwards. ``rolled_active`` says that all of the
    log went, and an empty active segment at its end was made first. ``notes`` say what stays.
    """

    log_start_before: int | None = None
    log_start: int | None = None
    high_watermark: int | None = None
    rolled_active: bool = False
    segments: tuple[ExpiredReport, ...] = ()
    notes: tuple[str, ...] = ()
    error: ErrorReport | None = None
    failure: Exception | None = None

    @property
    def bytes(self) -> int:
        """Return the bytes of the segments that went."""
        return sum(segment.bytes for segment in self.segments)

    def as_document(self) -> dict[str, object]:
        """Return what the document shows: the error without its exception, and the sums."""
        rules = {
            rule: {"segments": count, "bytes": size}
            for rule, (count, size) in self.by_rule().items()
        }
        return {**shown_fields(self, "failure"), "bytes": self.bytes, "by_rule": rules}

    def by_rule(self) -> dict[str, tuple[int, int]]:
        """Return segments and bytes by the rule they went by."""
        found: dict[str, tuple[int, int]] = {}
        for segment in self.segments:
            count, size = found.get(segment.rule, (0, 0))
            found[segment.rule] = (count + 1, size + segment.bytes)
        return found


class PartitionReport(Struct, frozen=True):
    """All rounds of one partition; the last one speaks for the partition.

    ``expiry`` is what retention did afterwards, None when it was not asked for.
    """

    topic: str
    partition: int
    rounds: tuple[RoundReport, ...]
    expiry: ExpiryReport | None = None

    def as_document(self) -> dict[str, object]:
        """Return what the document shows: the last round, and all of them."""
        last = self.rounds[-1].as_document() if self.rounds else {}
        return {
            "topic": self.topic, "partition": self.partition, **last, "rounds": self.rounds,
            "expiry": self.expiry,
        }  # fmt: skip


class CleanReport(Struct, frozen=True):
    """All partitions of one call, in the order of their names.

    ``warnings`` are what is to be known of their settings, a sentence each. ``assumed`` are the
    defaults of Kafka's that the call rests on because no source says them, by key.
    """

    partitions: tuple[PartitionReport, ...]
    warnings: tuple[str, ...] = ()
    assumed: Mapping[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the document that ``--json`` prints."""
        return document_of(self)

    def as_document(self) -> dict[str, object]:
        """Return what the document shows."""
        return {
            "warnings": self.warnings, "assumed": self.assumed, "partitions": self.partitions,
        }  # fmt: skip


def failures(report: CleanReport) -> Iterator[tuple[TopicPartition, Exception]]:
    """Yield each failure of a round, or of what was to expire after it, with its partition."""
    for each in report.partitions:
        found = [one.failure for one in each.rounds]
        found.append(None if each.expiry is None else each.expiry.failure)
        for failure in found:
            if failure is not None:
                yield TopicPartition(each.topic, each.partition), failure


def describe_error(error: Exception) -> ErrorReport:
    """Return what the report keeps of ``error``."""
    path = error.path if isinstance(error, CorruptError) else None
    if isinstance(error, OSError) and error.filename is not None:
        path = str(error.filename)
    position = error.position if isinstance(error, CorruptError) else None
    return ErrorReport(type(error).__name__, error_text(error), path, position, code_of(error))
