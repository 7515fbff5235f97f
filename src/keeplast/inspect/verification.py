"""``verify``: an independent judgement of what cleaning did, from the files alone.

It decides nothing as the cleaner does: no key map, no plan, no transaction index. Records of a key
are brought together by an external sort on a fingerprint of its own, and the law is read off:

* ``records``: what is left is an ordered sub-sequence of what was, field by field;
* ``winners``: every key has the final committed record that it had, by its rank; deleted is
  absent;
* ``transactions``: a read-committed consumer sees no aborted record and misses no committed one;
* ``untouched``: nothing at or above the bound, or younger than the lag, was touched;
* ``horizons``: tombstones and markers that are gone had passed their delete horizon;
* ``producers``: the last batch of each active producer and of the round is there;
* ``indexes``: the indexes of the result lead to the batches that they name;
* ``receipt``: the receipt is about these files.

Between a log and its result lies one round, unless a receipt shows more.
"""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace
from numpy.typing import NDArray

from keeplast.columns.fingerprints import PRIME
from keeplast.errors import CorruptError, InterruptedSwapError, RefusedError
from keeplast.format.filename import CLEANER_CHECKPOINT, parse_partition_directory
from keeplast.format.record import Record
from keeplast.inspect.comparison import Compared, ComparedGround, Comparison, Horizons
from keeplast.inspect.log_facts import LogFacts, find_facts
from keeplast.inspect.receipt_proof import check_receipt, choose_rounds, interruption, prints_of
from keeplast.inspect.sorted_runs import (
    FLAGS,
    HORIZON,
    IS_OLD_FORMAT,
    IS_TOMBSTONE,
    OFFSET,
    OLDER_LEFT,
    OLDER_RIGHT,
    ON_LEFT,
    ON_RIGHT,
    Rows,
    SortedRuns,
    final_records,
)
from keeplast.inspect.verified_log import Check, Finding, Findings, VerificationReport, VerifiedLog
from keeplast.log.checkpoints import read_checkpoint
from keeplast.log.files import FileSystem
from keeplast.log.truncation import noted_log_start
from keeplast.model.partition import INT64_MAX, delete_horizon
from keeplast.model.topic_config import CleanerConfig, TopicConfig
from keeplast.survey.receipt_book import RoundReceipt
from keeplast.survey.request import MEMORY_BYTES_DEFAULT

CLAIMS = {
    "readable": "every batch can be read and has the right checksum",
    "records": "what is left is an ordered sub-sequence of what was, field by field",
    "winners": "every key has the final committed record that it had",
    "transactions": "a read-committed consumer sees what is committed and nothing aborted",
    "untouched": "nothing that a round must not clean yet was touched",
    "horizons": "tombstones and markers that are gone had passed their delete horizon",
    "producers": "the last batch of each active producer and of the round is there",
    "indexes": "the indexes lead to the batches that they name",
    "receipt": "the receipt is about these files",
}
NO_BEFORE = "there is no log before cleaning to compare with"
SWAPPED = (
    "no record of the first log is missing in the second, which has others beside them: it looks "
    "as if the two were given the other way round; BEFORE comes first"
)
NO_ROUND = "no round: compared without a receipt"
NO_ROUND_IN_PLACE = (
    "no round: there is no receipt of this partition to judge by; clean writes one with --receipt "
    "FILE alone"
)


class VerifySettings(Struct, frozen=True):
    """What a judgement goes by; ``now_ms`` None means that no time was given.

    ``topic`` and ``now_ms`` are about runs without a receipt. ``bound`` narrows what may have been
    cleaned. ``temporary`` is where runs are sorted, None for the system's own place.
    """

    topic: TopicConfig = field(default_factory=TopicConfig)
    cleaner: CleanerConfig = field(default_factory=CleanerConfig)
    now_ms: int | None = None
    bound: int | None = None
    memory_bytes: int = MEMORY_BYTES_DEFAULT
    temporary: Path | None = None


class Verifier:
    """Judges partitions; reads, and writes nothing but sorted runs into a temporary directory."""

    def __init__(self, files: FileSystem, settings: VerifySettings) -> None:
        """Choose the fingerprint."""
        self._files = files
        self._settings = settings
        points = [2 + secrets.randbelow(PRIME - 2) for _ in range(2)]
        self._seeds: NDArray[np.uint64] = np.array(points, np.uint64)

    def verify_pair(
        self, before: Path, after: Path, receipts: Sequence[RoundReceipt] | None = None
    ) -> VerificationReport:
        """Judge the log in ``after`` against what it was in ``before``.

        ``receipts`` are what a receipt file says of this log, None where there is no such file.
        Where no round of theirs lies between the two the report says so.
        """
        left, damage = self._open(before)
        if left is None:
            reason = f"the log before cleaning cannot be read: {damage}"
            return _report_unjudged(after.name, tuple(CLAIMS), reason)
        if left[1].order.count:
            stray = left[1].order.first[0]
            reason = f"the log before cleaning is out of order at offset {stray.offset}"
            return _report_unjudged(after.name, tuple(CLAIMS), reason)
        right, damage = self._open(after)
        if right is None:
            return _unreadable(after.name, damage)
        clean_to = self._checkpoint(left[0]), self._checkpoint(right[0])
        rounds: tuple[RoundReceipt, ...] = ()
        if receipts:
            lefts, rights = prints_of(left), prints_of(right)
            rounds = choose_rounds(receipts, before=lefts, after=rights, clean_to=clean_to)
        untouched = Findings()
        ground = self._ground(left, right[0], rounds, untouched)
        topic = self._ranked_by(rounds)
        found, winners = self._compare(left, right, ground, topic)
        if len({(each.strategy, each.strategy_header) for each in rounds}) > 1:
            winners = Findings(reasons=["the rounds ranked records by different strategies"])
        found.untouched.add_all(untouched)
        checks = {
            "readable": Findings(),
            "records": joined(found.records, right[1].order),
            "winners": winners,
            "transactions": found.transactions,
            "untouched": found.untouched,
            "horizons": found.horizons,
            "producers": found.producers,
            "indexes": right[1].indexes,
        }
        notes = (*_notes(ground), *_ranking_notes(topic, winners, has_rounds=bool(rounds)))
        if rounds:
            checks["receipt"] = check_receipt(rounds, left, right, checkpoint=clean_to[1])
            notes += interruption(rounds[-1], right, clean_to[1])
        elif receipts is not None:
            notes = (NO_ROUND, *notes)
        if found.foreign > 0 and not found.lost:
            # The left log looks like what cleaning makes of the right one.
            notes = (SWAPPED, *notes)
        judged = tuple(each.name for each in rounds)
        return VerificationReport(after.name, _checks(checks), notes, judged)

    def verify_in_place(self, after: Path, receipts: Sequence[RoundReceipt]) -> VerificationReport:
        """Judge a log that was cleaned in place by what its receipts say.

        Without a round of theirs only what the log says of itself is judged.
        """
        right, damage = self._open(after)
        if right is None:
            return _unreadable(after.name, damage)
        log, facts = right
        records, producers, untouched = Findings(), Findings(), Findings()
        records.add_all(facts.order)
        records.cannot_judge(NO_BEFORE)
        untouched.cannot_judge(f"{NO_BEFORE}; sizes are in check receipt")
        checks = {
            "readable": Findings(),
            "records": records,
            "producers": producers,
            "untouched": untouched,
            "indexes": facts.indexes,
        }
        rounds = choose_rounds(receipts, before=None, after=prints_of(right))
        notes: tuple[str, ...] = ()
        if rounds:
            _check_producers(rounds[-1], right, producers)
            reached = self._checkpoint(log)
            checks["receipt"] = check_receipt(rounds, None, right, checkpoint=reached)
            notes = interruption(rounds[-1], right, reached)
        else:
            producers.cannot_judge(NO_BEFORE)
            notes = (NO_ROUND_IN_PLACE,)
        checks |= {
            name: Findings(reasons=[NO_BEFORE]) for name in ("winners", "transactions", "horizons")
        }
        judged = tuple(each.name for each in rounds)
        return VerificationReport(after.name, _checks(checks), notes, judged)

    def verify_replicas(self, first: Path, second: Path) -> VerificationReport:
        """Say whether two replicas differ by more than compaction allows."""
        left, damage = self._open(first)
        if left is None:
            return _unreadable(first.name, damage)
        right, damage = self._open(second)
        if right is None:
            return _unreadable(second.name, damage)
        ground = ComparedGround(
            bound=None,
            start=max(left[0].start, right[0].start),
            end=min(left[0].end, right[0].end),
        )
        topic = self._settings.topic
        found, winners = self._compare(left, right, ground, topic)
        notes = [f"compared offsets {ground.start} to {ground.end}, the last one not included"]
        if left[0].end != right[0].end:
            notes.append(f"the logs end at {left[0].end} and {right[0].end}")
        notes += _ranking_notes(topic, winners, has_rounds=False)
        checks = {
            "readable": Findings(),
            "records": joined(found.records, left[1].order, right[1].order),
            "winners": winners,
            "transactions": found.transactions,
            "indexes": joined(left[1].indexes, right[1].indexes),
        }
        return VerificationReport(second.name, _checks(checks), tuple(notes))

    def _open(self, path: Path) -> tuple[tuple[VerifiedLog, LogFacts] | None, str]:
        """Return a log and its facts, or why there are none."""
        try:
            log = VerifiedLog(path, self._files)
            log.require_end()
            return (log, find_facts(log)), ""
        except InterruptedSwapError:
            raise  # it says nothing of the log, and what ends it
        except (CorruptError, RefusedError) as error:
            return None, str(error)

    def _ranked_by(self, rounds: tuple[RoundReceipt, ...]) -> TopicConfig:
        """Return the settings that rank records: the receipts' where there are any."""
        topic = self._settings.topic
        if not rounds:
            return topic
        last = rounds[-1]
        return replace(
            topic, strategy=last.strategy, strategy_header=last.strategy_header,
            strategy_said=(last.strategy, "as the receipt says"),
        )  # fmt: skip

    def _compare(
        self,
        left: tuple[VerifiedLog, LogFacts],
        right: tuple[VerifiedLog, LogFacts],
        ground: ComparedGround,
        topic: TopicConfig,
    ) -> tuple[Compared, Findings]:
        with tempfile.TemporaryDirectory(
            prefix="keeplast-verify-", dir=self._settings.temporary
        ) as directory:
            runs = SortedRuns(Path(directory), self._settings.memory_bytes)
            found = Comparison(left, right, ground, runs, self._seeds, topic).run()
            winners = Findings()
            for rows in final_records(runs.merged()):
                if ground.bound is None:
                    _judge_replicas(rows, winners)
                else:
                    _judge_finals(rows, ground.horizons, winners, found.horizons)
        for findings in (winners, found.horizons):
            _name_keys(findings, left[0], right[0])
        return found, winners

    def _ground(
        self,
        left: tuple[VerifiedLog, LogFacts],
        after: VerifiedLog,
        rounds: tuple[RoundReceipt, ...],
        untouched: Findings,
    ) -> ComparedGround:
        """Return where cleaning had to stop, by every rule that can be applied."""
        log, facts = left
        settings = self._settings
        active, now_active = log.segments[-1].base_offset, after.segments[-1].base_offset
        # The active segment may have been rolled before cleaning: it is the newest one's base.
        bounds = [now_active if active <= now_active <= log.end else active]
        first_open = facts.transactions.first_open()
        if first_open is not None:
            bounds.append(_base_of(log, first_open))
        if settings.bound is not None:
            bounds.append(settings.bound)
        times: tuple[tuple[int, int], ...] = ()
        first_dirty, lag_ms = self._first_dirty(log), settings.topic.min_compaction_lag_ms
        if rounds:
            bounds.append(rounds[-1].bound)
            first_dirty, lag_ms = rounds[-1].first_dirty, rounds[-1].min_compaction_lag_ms
            times = tuple(
                (r.now_ms, delete_horizon(r.now_ms, r.delete_retention_ms)) for r in rounds
            )
        elif settings.now_ms is not None:
            stamped = delete_horizon(settings.now_ms, settings.topic.delete_retention_ms)
            times = ((settings.now_ms, stamped),)
        if lag_ms > 0 and not times:
            untouched.cannot_judge(
                "min.compaction.lag.ms is set and the time is not given: --now-ms"
            )
        elif lag_ms > 0:
            bounds.extend(_young_from(left, first_dirty, times[-1][0] - lag_ms, rounds))
        last_offsets, marker_epochs = _find_required(
            facts, times[-1][0] if times else None, settings.cleaner.producer_id_expiration_ms
        )
        return ComparedGround(
            bound=min(bounds),
            start=self._expired_below(log, after, rounds),
            indexed_to=rounds[-1].end_offset if rounds else INT64_MAX,
            horizons=Horizons(times, tuple(each.readers for each in rounds)),
            last_offsets=last_offsets,
            marker_epochs=marker_epochs,
        )

    def _expired_below(
        self, log: VerifiedLog, after: VerifiedLog, rounds: tuple[RoundReceipt, ...]
    ) -> int:
        """Return below which offset nothing needs to be there: 0 unless something says so.

        A log may begin later than it did by its policy, its receipts, or a log start offset that
        either directory names; otherwise its first segments are missing.
        """
        if after.start <= log.start:
            return 0
        policy = self._settings.topic
        says_so = (
            (policy.is_compacted and policy.expires)
            or any(each.expired for each in rounds)
            or any(noted_log_start(self._files, each.path) >= after.start for each in (log, after))
        )
        return after.start if says_so else 0

    def _first_dirty(self, log: VerifiedLog) -> int:
        offset = self._checkpoint(log)
        return offset if offset is not None and log.start <= offset <= log.end else log.start

    def _checkpoint(self, log: VerifiedLog) -> int | None:
        """Return the cleaner checkpoint of a log, None where its directory has none."""
        parsed = parse_partition_directory(log.path.name)
        if parsed is None:
            return None
        root = log.path.parent
        return read_checkpoint(self._files, root, CLEANER_CHECKPOINT).get(parsed.partition)


def joined(*parts: Findings) -> Findings:
    """Return the findings of several passes as one."""
    together = Findings()
    for part in parts:
        together.add_all(part)
    return together


def _judge_finals(rows: Rows, horizons: Horizons, winners: Findings, tombstones: Findings) -> None:
    """Hold the final records of some keys against the law; left is before, right is after."""
    is_lost = rows[:, FLAGS] & ON_RIGHT == 0
    if horizons.rounds:
        # What most rounds do most: tombstones past their horizon go, and their keys with them.
        had_passed = horizons.had_passed(rows)
        is_tombstone_only = rows[:, FLAGS] & (IS_TOMBSTONE | IS_OLD_FORMAT) == IS_TOMBSTONE
        is_lost &= ~(had_passed & is_tombstone_only & (rows[:, OLDER_RIGHT] < 0))
    lost = rows[is_lost]
    for row in lost:
        offset, older = int(row[OFFSET]), int(row[OLDER_RIGHT])
        is_tombstone = bool(row[FLAGS] & IS_TOMBSTONE)
        if older >= 0 and is_tombstone:
            winners.add(f"a deleted key is back: its tombstone was at {offset}", offset=older)
        elif older >= 0:
            winners.add(f"the final record is missing or changed, {older} is final", offset=offset)
        elif not is_tombstone:
            winners.add("the final record is missing or changed", offset=offset)
        if not is_tombstone:
            continue
        if row[FLAGS] & IS_OLD_FORMAT:
            tombstones.cannot_judge(
                "tombstones of an old format are gone: they went by file times, not by a horizon"
            )
        elif not horizons.rounds:
            tombstones.cannot_judge("tombstones are gone, and the time is not given: --now-ms")
        else:
            problem = horizons.problem(int(row[HORIZON]), offset)
            if problem is not None:
                tombstones.add(f"the tombstone is gone and {problem}", offset=offset)


def _judge_replicas(rows: Rows, winners: Findings) -> None:
    """Both replicas have the final record of each key; a tombstone may be gone with all before."""
    both = ON_LEFT | ON_RIGHT
    for row in rows[rows[:, FLAGS] & both != both]:
        is_on_left = bool(row[FLAGS] & ON_LEFT)
        older = int(row[OLDER_RIGHT if is_on_left else OLDER_LEFT])
        offset = int(row[OFFSET])
        where = "second" if is_on_left else "first"
        if not row[FLAGS] & IS_TOMBSTONE:
            winners.add(f"the {where} replica lacks the final record", offset=offset)
        elif older >= 0:
            winners.add(
                f"the {where} replica lacks the tombstone at {offset} and has what it deleted",
                offset=older,
            )


def _name_keys(findings: Findings, *logs: VerifiedLog) -> None:
    """Look up the keys of the first findings."""
    wanted = {f.offset for f in findings.first if f.offset is not None and f.key is None}
    for log in logs:
        records = log.records_at(wanted)
        findings.first = [_with_key(f, records) for f in findings.first]
        wanted -= records.keys()


def _with_key(finding: Finding, records: dict[int, Record]) -> Finding:
    record = None if finding.offset is None else records.get(finding.offset)
    if finding.key is not None or record is None:
        return finding
    return replace(finding, key=record.key)


def _base_of(log: VerifiedLog, offset: int) -> int:
    """Return the base of the segment that holds ``offset``: bounds lie on segments."""
    return max((s.base_offset for s in log.segments if s.base_offset <= offset), default=offset)


def _young_from(
    left: tuple[VerifiedLog, LogFacts],
    first_dirty: int,
    limit: int,
    rounds: tuple[RoundReceipt, ...],
) -> list[int]:
    """Return the base of the first dirty segment with a record younger than ``limit``, if any."""
    log, facts = left
    times = {s.base_offset: s.mtime_ms for s in rounds[0].inputs} if rounds else {}
    dirty = [s for s in log.segments[:-1] if s.base_offset >= _base_of(log, first_dirty)]
    for segment in dirty:
        base = segment.base_offset
        largest = facts.segments[base].largest_timestamp
        if largest < 0:
            largest = times.get(base) or segment.mtime_ms
        if largest > limit:
            return [base]
    return []


def _find_required(
    facts: LogFacts, now_ms: int | None, expiration_ms: int
) -> tuple[NDArray[np.int64], dict[int, int]]:
    """Return the last offsets that active producers need, and the epochs whose markers they do."""
    last_offsets: list[int] = []
    marker_epochs: dict[int, int] = {}
    for producer_id, last in facts.producers.items():
        is_open = producer_id in facts.transactions.open_from
        if now_ms is not None and not is_open and now_ms - last.timestamp >= expiration_ms:
            continue
        if last.last_offset >= 0:
            last_offsets.append(last.last_offset)
        else:
            marker_epochs[producer_id] = last.epoch
    return np.array(sorted(last_offsets), np.int64), marker_epochs


def _check_producers(
    receipt: RoundReceipt, right: tuple[VerifiedLog, LogFacts], findings: Findings
) -> None:
    """Hold the producers of the log against those that the round had to keep."""
    log, facts = right
    expired_below = log.start if receipt.expired else 0
    if receipt.producers is None:
        findings.cannot_judge("the receipt does not name producers")
        return
    for producer_id, last_offset, _ in receipt.producers:
        if last_offset < expired_below:
            continue
        known = facts.producers.get(producer_id)
        if known is None or -1 < known.last_offset < last_offset:
            findings.add(f"the last batch of producer {producer_id} is missing", offset=last_offset)


def _notes(ground: ComparedGround) -> tuple[str, ...]:
    notes = [f"offsets from {ground.bound} on must not have been touched"]
    if ground.start:
        notes.append(
            f"the log begins at offset {ground.start} now: what lay below has expired or was "
            "deleted, and is not compared"
        )
    return tuple(notes)


def _ranking_notes(topic: TopicConfig, winners: Findings, *, has_rounds: bool) -> tuple[str, ...]:
    """Say by what records ranked, and what to do where that may be why a winner is missing."""
    said = f"the records of a key rank by {topic.ranking}"
    if winners.count and not has_rounds:
        said += (
            "; where they were cleaned by another strategy, say it with --config "
            "compaction.strategy=header and --config compaction.strategy.header=NAME, or give the "
            "receipt of the rounds"
        )
    return (said,)


def _checks(found: dict[str, Findings]) -> tuple[Check, ...]:
    return tuple(found[name].check(name, claim) for name, claim in CLAIMS.items() if name in found)


def _report_unjudged(name: str, checks: Sequence[str], reason: str) -> VerificationReport:
    found = {check: Findings(reasons=[reason]) for check in checks if check != "receipt"}
    return VerificationReport(name, _checks(found))


def _unreadable(name: str, damage: str) -> VerificationReport:
    reason = "the log cannot be read"
    found = {check: Findings(reasons=[reason]) for check in CLAIMS if check != "receipt"}
    found["readable"] = Findings()
    found["readable"].add(damage)
    return VerificationReport(name, _checks(found))
