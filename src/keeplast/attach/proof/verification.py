"""``verify`` of a live cluster: an independent judgement of a partition that is compacted there.

Consumers read it through brokers, in both isolation levels. Every segment that the brokers' fold
names is read from its objects too, since a broker's caches hide an object that is missing. Both are
compared record by record, and with what the decision log says. The rule: **nothing is written
anywhere, and nothing of the cleaner decides here**. What is not as it must be is looked at once
more when the partition has changed meanwhile.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Protocol

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from keeplast.attach.held.publication import known_ids
from keeplast.attach.held.stored_segment import StoredSegment
from keeplast.attach.proof.given_records import GivenRecords
from keeplast.attach.proof.published_swaps import CleanGround, KeyLaw, check_swaps, sources_left
from keeplast.attach.rounds.round import clean_to
from keeplast.attach.rules.sources import (
    EffectiveLog,
    EffectiveRange,
    Range,
    effective_log,
    newest_whole,
    synthetic_lineage,
)
from keeplast.cluster.layouts.layout import AuxiliaryFile, RemoteLayout
from keeplast.cluster.live_cluster import ClusterFacts, MetadataReader, OffsetRange, TopicFacts
from keeplast.cluster.metadata_cache import PartitionCache, is_compactors, name_of
from keeplast.cluster.metadata_log import fold_metadata
from keeplast.cluster.topic_records import RecordReader
from keeplast.columns.fingerprints import PRIME
from keeplast.errors import ConflictError, CorruptError, RefusedError
from keeplast.format import leader_epoch, producer_snapshot
from keeplast.format.checksum import crc32c
from keeplast.format.identifier import metadata_partition
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.remote_log_metadata import RemoteLogSegment
from keeplast.inspect.log_scan import AbortedScan
from keeplast.inspect.receipt_proof import Print, rounds_behind, rounds_within
from keeplast.inspect.sorted_runs import SortedRuns
from keeplast.inspect.verified_log import (
    WINDOW_BYTES,
    Findings,
    PartReader,
    VerificationReport,
    VerifiedPart,
)
from keeplast.log.transactions import TransactionFold, cut_window
from keeplast.log.windows import WindowBuffers
from keeplast.model.document import JudgedBy, Verdict
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import Strategy, TopicConfig
from keeplast.read.transactions import TransactionOutcomes
from keeplast.survey.receipt_book import RoundReceipt
from keeplast.survey.request import MEMORY_BYTES_DEFAULT
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import Attached, AttachedName, Decision, DecisionState

JUDGED_BY = "verify of a cluster"
UNREAD = -1
"""In place of the checksum of a segment that cannot be read whole."""
LOOKS_MAX = 3
"""How often a partition is read again that changes while it is read."""
CLAIMS = {
    "served": "brokers name a segment for every offset, up to the end of the remote tier",
    "objects": "every segment that is served lies there whole, and decodes",
    "indexes": "the indexes lead to the batches that they name",
    "records": "a consumer is given what lies there: offset, key, value, timestamp, headers",
    "transactions": "a read-committed consumer is given what is committed, and nothing aborted",
    "swaps": "what the decision log has published is what brokers serve",
    "keys": "in what is clean no record is left that another supersedes",
    "removed": "of what was replaced no key's last record is gone, and no marker before its time",
}
Progressed = Callable[[int], object]


class ReadCluster(MetadataReader, RecordReader, Protocol):
    """A cluster that is only read."""

    def read_facts(self, topics: Sequence[str] = ()) -> ClusterFacts:
        """Return brokers, ``topics`` and the metadata topic."""


class AttachedVerifySettings(Struct, frozen=True, kw_only=True):
    """``topic`` says by what records of a key rank; ``temporary`` is where keys are sorted.

    The report names those of ``receipts``, all of the partition, that what is served has come of.
    """

    topic: TopicConfig
    memory_bytes: int = MEMORY_BYTES_DEFAULT
    temporary: Path | None = None
    receipts: tuple[RoundReceipt, ...] = ()


class _Looked(Struct, frozen=True):
    """What cluster and decision log say of the partition at one moment."""

    log: OffsetRange
    cache: PartitionCache
    known: Attached | None
    decisions: tuple[Decision, ...]
    own_ids: Collection[bytes]

    def standing(self, end: int) -> object:
        """Return what findings rest on, below ``end``; what brokers copy later is not in it."""
        return (
            self.log.start,
            None if self.known is None else self.known.epoch,
            [(each.id, each.state) for each in self.decisions],
            [
                (each.epoch, each.start_offset, each.segment.id)
                for each in self.cache.served()
                if each.start_offset < end
            ],
        )


class _Judged(Struct):
    """Findings by check; ``prints`` are of what a compactor wrote and brokers serve."""

    checks: dict[str, Findings] = field(
        default_factory=lambda: {name: Findings() for name in CLAIMS}
    )
    notes: list[str] = field(default_factory=list)
    prints: dict[int, Print] = field(default_factory=dict)

    def __getitem__(self, name: str) -> Findings:
        return self.checks[name]

    def report(self, name: str) -> VerificationReport:
        checks = tuple(self.checks[each].check(each, claim) for each, claim in CLAIMS.items())
        return VerificationReport(name, checks, tuple(self.notes))

    def owned_report(
        self, name: str, receipts: Sequence[RoundReceipt], judged_by: JudgedBy
    ) -> VerificationReport:
        """Return the report with the rounds that it is about."""
        report = self.report(name)
        broken = report.names(Verdict.BROKEN)
        # The replaced segments are not what is broken; but it is unknown which round let a record
        # go.
        find = rounds_behind if not broken or "removed" in broken else rounds_within
        rounds = find(receipts, self.prints, by_size=bool(broken))
        return replace(report, rounds=tuple(each.name for each in rounds), judged_by=judged_by)


class AttachedVerifier:
    """Judges partitions of one cluster; writes nothing but sorted runs to a temporary directory."""

    def __init__(
        self, cluster: ReadCluster, log: DecisionLog, layout: RemoteLayout,
        progressed: Progressed = lambda count: None, planned: Progressed = lambda count: None,
    ) -> None:  # fmt: skip
        """Choose the fingerprint. ``progressed`` hears of the bytes that ``planned`` heard of."""
        self._cluster = cluster
        self._log = log
        self._layout = layout
        self._progressed = progressed
        self._planned = planned
        points = [2 + secrets.randbelow(PRIME - 2) for _ in range(2)]
        self._seeds: NDArray[np.uint64] = np.array(points, np.uint64)

    def verify(
        self, topic: TopicFacts, number: int, settings: AttachedVerifySettings
    ) -> VerificationReport:
        """Judge partition ``number`` of ``topic``.

        ConflictError when it changes whenever it is read, UnavailableError when cluster or store
        cannot be read, RefusedError for a permission that is missing.
        """
        for _ in range(LOOKS_MAX):
            looked = self._look(topic, number)
            report, end = self._judge(topic, number, looked, settings)
            if report.verdict is not Verdict.BROKEN:
                return report
            if self._look(topic, number).standing(end) == looked.standing(end):
                return report
        raise ConflictError(
            "the partition changed whenever it was read; verify again when no process compacts it. "
            f"partition={topic.name}-{number}",
            code="K444",
        )

    def _look(self, topic: TopicFacts, number: int) -> _Looked:
        facts = self._cluster.read_facts([topic.name])
        if facts.metadata_topic is None:
            raise RefusedError(
                "the cluster has no remote tier: nothing was ever copied to one", code="K407"
            )
        if facts.topics[0].topic_id != topic.topic_id:
            raise ConflictError(
                f"the topic was deleted and created again. topic={topic.name}", code="K418"
            )
        name = AttachedName(facts.cluster_id, name_of(topic, number))
        known = self._log.find(name)
        decisions = () if known is None else self._log.decisions(known)
        # After the decisions: the batches that they have published are there. Before the ids: all
        # of its ids are written down by then.
        at = metadata_partition(topic.topic_id, number, facts.metadata_topic.partition_count)
        folded = fold_metadata(self._cluster, facts.metadata_topic, [at])
        folded.require_sound()
        # After the metadata: brokers move the log start first, and then say what goes.
        log = self._cluster.read_ranges(topic)[number]
        own_ids = set() if known is None else known_ids(self._log, known)
        cache = folded.cache.partitions.get(name.partition, PartitionCache())
        return _Looked(log, cache, known, decisions, own_ids)

    def _judge(
        self, topic: TopicFacts, number: int, looked: _Looked, settings: AttachedVerifySettings
    ) -> tuple[VerificationReport, int]:
        """Return the report, and the end of the remote tier, exclusive."""
        found = _Judged()
        title = str(TopicPartition(topic.name, number))
        effective = effective_log(looked.cache, self._lineage(looked, found), looked.log.start)
        for first, last in effective.holes:
            found["served"].add(
                f"nothing serves offsets {first} to {last}: who reads them is sent elsewhere, or "
                "stops", offset=first,
            )  # fmt: skip
        check_swaps(
            found["swaps"], self._layout, self._log, looked.cache, looked.known, looked.decisions,
            looked.own_ids, looked.log.start,
        )  # fmt: skip
        if not effective.ranges:
            found.notes.append("nothing of it is in the remote tier")
            return found.report(title), looked.log.start
        end = effective.ranges[-1].end + 1
        sources = sources_left(looked.decisions, looked.log.start, found["removed"])
        is_cut = any(each.segment.start_offset < looked.log.start for each in sources)
        if is_cut and settings.topic.strategy is not Strategy.OFFSET:
            sources = []
            found["removed"].cannot_judge(
                "records rank by more than their offset, and the log's start has moved: what "
                "superseded them may be gone"
            )
        ground = self._ground(looked, effective, sources, end)
        read = [*effective.segments, *(each.segment for each in sources)]
        judges_keys = bool(ground.compacted or sources)
        # Which data was aborted has to be known before the one pass: only then, headers come first.
        is_folded = judges_keys and self._has_transactions(read)
        self._planned(sum(each.size_bytes for each in read) * (1 + is_folded))
        with tempfile.TemporaryDirectory(
            prefix="keeplast-verify-", dir=settings.temporary
        ) as directory:
            aborted = TransactionOutcomes()
            if is_folded:
                aborted = self._aborted(effective.ranges, sources)
            law = self._law(found, ground, sources, aborted, settings, Path(directory))
            count = self._read(topic, number, effective, found, law, settings, end)
            keys = law.finish()
        found.notes.append(
            f"offsets {looked.log.start} to {end - 1}: {count} records in "
            f"{len(effective.segments)} segments"
        )
        if looked.known is None:
            found.notes.append("this decision log has not attached it")
            return found.report(title), end
        if any(each.state is DecisionState.DECIDED for each in looked.decisions):
            found.notes.append("a swap is decided and not published: keeplast repair")
        clean = clean_to(self._log, looked.known, looked.cache, looked.log.start)
        found.notes.append(f"clean below offset {clean}: {keys} keys")
        found.notes.append(f"the records of a key rank by {settings.topic.ranking}")
        found.notes.append(
            f"{len(sources)} replaced segments were compared with what is served"
            if sources
            else "no replaced segment is left to compare with"
        )
        judged_by = JudgedBy(JUDGED_BY, looked.known.epoch, clean)
        return found.owned_report(title, settings.receipts, judged_by), end

    def _lineage(self, looked: _Looked, found: _Judged) -> Sequence[LeaderEpoch]:
        """Return the epochs of the log; what cannot be read is a finding when it is read again."""
        newest = newest_whole(looked.cache)
        if newest is not None:
            try:
                data = self._layout.open(newest).read_auxiliary(AuxiliaryFile.LEADER_EPOCHS)
                return leader_epoch.decode(data or b"")
            except (CorruptError, FileNotFoundError) as error:
                found["objects"].add(
                    f"the leader epochs of the log cannot be read: {error}",
                    offset=newest.start_offset,
                )
        return synthetic_lineage(looked.cache)

    def _ground(
        self, looked: _Looked, effective: EffectiveLog, sources: Sequence[EffectiveRange],
        end: int,
    ) -> CleanGround:  # fmt: skip
        """Return what is judged by keys. No round touches what DeleteRecords has cut."""
        compacted: list[Range] = []
        if looked.known is not None:
            clean = clean_to(self._log, looked.known, looked.cache, looked.log.start)
            compacted = [
                (each.start, min(each.end, clean - 1))
                for each in effective.ranges
                if is_compactors(each.segment)
                and each.start < clean
                and each.segment.start_offset >= looked.log.start
            ]
        # What is left of their sources has the horizons that swaps went by.
        swaps = [e for e in looked.decisions if e.state is DecisionState.PUBLISHED]
        return CleanGround(
            log_start=looked.log.start, end=end, compacted=compacted,
            expired_ms=max((each.decided_ms for each in swaps), default=-1),
            expires_below=max((each.expires_below for each in swaps), default=0),
            covered=[(each.start, each.end) for each in sources],
        )  # fmt: skip

    def _law(
        self, found: _Judged, ground: CleanGround, sources: Sequence[EffectiveRange],
        aborted: TransactionOutcomes, settings: AttachedVerifySettings, directory: Path,
    ) -> KeyLaw:  # fmt: skip
        half = settings.memory_bytes // 2
        runs = []
        for name in ("clean", "all"):
            (directory / name).mkdir()
            runs.append(SortedRuns(directory / name, half))
        return KeyLaw(
            ground, self._parts(sources, settings.topic), aborted,
            (runs[0], runs[1]), found["keys"], found["removed"],
        )  # fmt: skip

    def _parts(
        self, sources: Sequence[EffectiveRange], topic: TopicConfig
    ) -> Iterator[tuple[VerifiedPart, int]]:
        """Yield parts of ``sources``, each with the first offset that is read of it."""
        reader, buffers = PartReader(self._seeds, topic), WindowBuffers(WINDOW_BYTES)
        for each in sources:
            for window in StoredSegment(self._layout, each.segment).windows(buffers):
                for part in reader.parts(window):
                    yield part, each.start
                self._progressed(window.length)

    def _aborted(
        self, log: Sequence[EffectiveRange], sources: Sequence[EffectiveRange]
    ) -> TransactionOutcomes:
        """Return the aborted transactions, as markers show them: an index may lack one.

        An unreadable object says nothing here; its reader reports it then.
        """
        aborted: dict[int, set[tuple[int, int]]] = {}
        for ranges in (log, sources):
            fold, buffers = TransactionFold(), WindowBuffers(WINDOW_BYTES)
            for each in ranges:
                try:
                    for window in StoredSegment(self._layout, each.segment).headers(buffers):
                        for entry in fold.add(cut_window(window, each.start, each.end + 1)):
                            if entry.first_offset <= entry.last_offset:
                                aborted.setdefault(entry.producer_id, set()).add(
                                    (entry.first_offset, entry.last_offset)
                                )
                        self._progressed(window.length)
                except (CorruptError, FileNotFoundError):
                    continue
        return TransactionOutcomes(
            aborted={producer: sorted(its) for producer, its in aborted.items()}
        )

    def _has_transactions(self, segments: Iterable[RemoteLogSegment]) -> bool:
        """Say whether a producer of transactions is known where one of ``segments`` ends."""
        for each in segments:
            try:
                data = self._layout.open(each).read_auxiliary(AuxiliaryFile.SNAPSHOT)
                entries = producer_snapshot.decode(data or b"")
            except (CorruptError, FileNotFoundError):
                return True  # It is unknown.
            if any(e.coordinator_epoch >= 0 or e.current_txn_first_offset >= 0 for e in entries):
                return True
        return False

    def _read(
        self, topic: TopicFacts, number: int, effective: EffectiveLog, found: _Judged, law: KeyLaw,
        settings: AttachedVerifySettings, end: int,
    ) -> int:  # fmt: skip
        """Compare objects and consumers in one pass; return how many records were compared."""
        held = OffsetRange(effective.ranges[0].start, end)
        compacted = [(e.start, e.end) for e in effective.ranges if is_compactors(e.segment)]
        with ExitStack() as stack:
            uncommitted, committed = (
                stack.enter_context(
                    closing(
                        self._cluster.read_records(
                            topic.name, number, held, is_committed=is_committed
                        )
                    )
                )
                for is_committed in (False, True)
            )
            given = GivenRecords(
                uncommitted, committed, found["records"], found["transactions"],
                effective.doubtful, compacted,
            )  # fmt: skip
            pass_ = _Pass(PartReader(self._seeds, settings.topic), given, law, found)
            pass_.takes_prints = bool(settings.receipts)
            for each in effective.ranges:
                pass_.read(StoredSegment(self._layout, each.segment), each, self._progressed)
            given.finish(end - 1)
        return given.count


class _Pass:
    """One pass over the objects of a log."""

    def __init__(
        self, reader: PartReader, given: GivenRecords, law: KeyLaw, found: _Judged
    ) -> None:  # fmt: skip
        self._reader = reader
        self._given = given
        self._law = law
        self._found = found
        self._buffers = WindowBuffers(WINDOW_BYTES)
        self._aborts = AbortedScan()
        self.takes_prints = False

    def read(self, stored: StoredSegment, at: EffectiveRange, progressed: Progressed) -> None:
        """Read one range; what cannot be read is a finding, and nothing is said of the rest."""
        position = at.start
        takes_print = self.takes_prints and is_compactors(at.segment)
        crc = 0
        if takes_print:
            self._found.prints[at.segment.start_offset] = Print(at.segment.size_bytes, UNREAD)
        try:
            for window in stored.windows(self._buffers):
                if takes_print:
                    crc = crc32c(window.data[: window.length].data, crc)
                for part in self._reader.parts(window):
                    for number in range(len(part.table)):
                        batch = part.batch(number)
                        if at.start <= batch.last_offset <= at.end:
                            self._aborts.take(batch)
                        self._given.add(batch, at.start, at.end)
                    self._law.add(part, at.start, at.end)
                    position = max(position, part.last_offset + 1)
                progressed(window.length)
        except CorruptError as error:
            self._found["objects"].add(str(error), offset=min(position, at.end))
            self._given.skip_to(at.end)
            self._law.skip(at.end)
            self._aborts = AbortedScan()
            return
        if takes_print:
            self._found.prints[at.segment.start_offset] = Print(at.segment.size_bytes, crc)
        for problem in stored.index_problems():
            self._found["indexes"].add(str(problem), offset=at.start)
        entries = [each for each in stored.aborted if at.start <= each.last_offset <= at.end]
        for words, offset in self._aborts.compare(entries):
            self._found["transactions"].add(f"transaction index: {words}", offset=offset)
