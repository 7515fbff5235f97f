"""A data directory as what the loop works on. What a reader must not break:

1. The data directory's lock is held from start to end.
2. Nothing is remembered that the directory does not say: after ``kill -9`` the next start goes on
   from the files alone. Only the list of what is set aside and the receipts are ours.
3. Settings are read again before each turn. Those that cannot be used are said once, and the last
   good ones stay.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from keeplast.cleaner.log_order import Candidate, Choice
from keeplast.clock import Clock
from keeplast.config.selection import Selection
from keeplast.errors import CompactionError, CorruptError
from keeplast.inspect.status import LogStatus
from keeplast.log.files import FileSystem
from keeplast.log.lock import check_held
from keeplast.log.root_files import RECEIPTS_NAME
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig
from keeplast.run.coordinator import Coordinator
from keeplast.run.expiry import failed_expiry
from keeplast.run.receipt import action_line, append_receipt
from keeplast.run.round_state import candidate_of
from keeplast.service.daemon import TurnLedger
from keeplast.service.live import Deed, Narrator, Wish
from keeplast.service.look import (
    LookFinding,
    WatchedLogs,
    all_partitions,
    complaints,
    decided_facts,
    end_swaps,
    facts_of,
    look_at,
    recovered_words,
)
from keeplast.service.receipts import with_room
from keeplast.service.schedule import (
    FAILING_NAME,
    LOOK_MS_MIN,
    SetAside,
    failing,
    fingerprint,
    is_lasting,
    is_stop,
    read_set_aside,
    set_aside,
    write_set_aside,
)
from keeplast.service.snapshot import DirectoryLook, PartitionFacts, TierTotals
from keeplast.survey.bounds import Checkpoints, load_checkpoints
from keeplast.survey.report import CleanReport, PartitionReport, RoundReport, describe_error
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.survey.survey import Survey


class DirectorySettings(Struct, frozen=True):
    """What stays the same from start to end.

    ``select`` reads settings and partitions again at each call. ``request`` is what every round is
    asked for: memory, order, whether idle segments are rolled. ``retries`` forgets what is set
    aside. ``receipt`` is the file of receipts, None for the directory's own. ``is_watched`` has
    each look say what ``keeplast status`` would, for a console. ``unanswered`` says what asked
    brokers do not answer.
    """

    root: Path
    select: Callable[[], Selection]
    request: CleanRequest
    retries: bool = False
    is_watched: bool = False
    receipt: Path | None = None
    unanswered: Callable[[], Sequence[str]] = tuple


class _KnownPartition(Struct):
    """What was found, and the settings that count since the last turn.

    ``fresh`` are the findings of this turn's look; the others are of earlier ones.
    """

    selection: Selection
    cleaner: CleanerConfig
    findings: dict[TopicPartition, LookFinding] = field(default_factory=dict)
    fresh: list[LookFinding] = field(default_factory=list)


class DirectoryWork:
    """The partitions of one data directory."""

    def __init__(
        self,
        coordinator: Coordinator,
        clock: Clock,
        files: FileSystem,
        settings: DirectorySettings,
        *,
        narrator: Narrator,
    ) -> None:
        """Take the components, and read settings and partitions for the first time.

        What settings can be wrong about raises here only.
        """
        self._coordinator = coordinator
        self._clock = clock
        self._files = files
        self._settings = settings
        selection = settings.select()
        self._known = _KnownPartition(selection, selection.settings.cleaner_config())
        self.ledger = TurnLedger(clock, narrator, self._set_aside, self._known.cleaner.backoff_ms)
        self._schedule = self.ledger.schedule
        self._unknown: set[TopicPartition] = set()
        self._failures: dict[TopicPartition, SetAside] = {}
        self._watched = WatchedLogs(settings.root, files) if settings.is_watched else None
        self._wished: set[TopicPartition] = set()
        self._ended: set[TopicPartition] = set()

    @property
    def place(self) -> Path:
        """Return the directory."""
        return self._settings.root

    @property
    def slots(self) -> int:
        """Return how many workers there are."""
        return self._coordinator.slots

    @property
    def tier_totals(self) -> TierTotals | None:
        """Return None: nothing is moved anywhere."""
        return None

    @property
    def directory_look(self) -> DirectoryLook | None:
        """Return the last look as ``keeplast status`` would make it, None without a console."""
        if self._watched is None:
            return None
        return self._watched.look(
            self._known.selection, self.ledger.looked_ms, self._schedule.marks, self._failures
        )

    def _detail(
        self, request: PartitionRequest, survey: Survey, checkpoints: Checkpoints
    ) -> LogStatus | None:
        if self._watched is None:
            return None
        return self._watched.detail(
            self._known.selection, request, survey, checkpoints, self.ledger.looked_ms
        )

    def holding(self) -> AbstractContextManager[object]:
        """Hold the lock; RefusedError when the directory is in use."""
        return self._coordinator.holding(self._settings.root)

    def stop(self) -> None:
        """End rounds at their next safe point."""
        self._coordinator.stop()

    def forget(self) -> None:
        """Have the next look see every partition again."""
        self._known.findings = {}

    def refused(self) -> Mapping[TopicPartition, Exception]:
        """Return the partitions whose settings or names are refused."""
        return {
            TopicPartition(each.topic, each.partition): round_.failure
            for each in self._known.selection.decided
            for round_ in each.rounds
            if round_.failure is not None
        }

    def begin(self) -> None:
        """Read what is set aside, and report what the settings' sources complain of."""
        self.ledger.warn(complaints(self._known.selection))
        with contextlib.suppress(CorruptError):
            self._failures = read_set_aside(self._files, self._settings.root, FAILING_NAME)
        if self._settings.retries:
            write_set_aside(self._files, self._settings.root, {})
            return
        try:
            self._schedule.marks = read_set_aside(self._files, self._settings.root)
            self._unknown = set(self._schedule.marks)
        except CorruptError as error:
            self.ledger.narrator.warned(f"{error}; what was set aside is tried again")

    def refresh(self) -> None:
        """Read settings and list partitions again; bad ones change nothing, reported once."""
        known = self._known
        try:
            selection = self._settings.select()
            known.cleaner = selection.settings.cleaner_config()
            known.selection = selection
            self.ledger.backoff_ms = known.cleaner.backoff_ms
            self.ledger.warn([*complaints(selection), *self._settings.unanswered()])
        except (CompactionError, OSError) as error:
            self.ledger.warn([f"the last good settings stay: {error}"])
        self._schedule.keep(all_partitions(known.selection))

    def grant(self, wish: Wish) -> None:
        """Write a wish down, and try again or clean next what it is about.

        A round that was wished for is one whatever the dirty ratio; every other limit stands.
        """
        receipt = self._receipts()
        line = action_line(wish.partition, name=wish.deed, by=wish.by, now_ms=wish.at_ms)
        append_receipt(self._files, receipt, line)
        partition = wish.partition
        if partition is None:
            return
        if self._schedule.marks.pop(partition, None) is not None:
            self._write_marks()
        self._schedule.recovered(partition)
        self._known.findings.pop(partition, None)
        if wish.deed is Deed.CLEAN:
            self._wished.add(partition)

    def _request(
        self, partitions: Sequence[PartitionRequest], *, force: bool = False
    ) -> CleanRequest:
        return replace(
            self._settings.request,
            force=force,
            partitions=tuple(partitions),
            expired=self._known.cleaner.has_expired_rounds,
            receipt=self._receipts(),
        )

    def _receipts(self) -> Path:
        """Return the file that the next lines are appended to, which has room."""
        settings = self._settings
        return with_room(self._files, settings.receipt or settings.root / RECEIPTS_NAME)

    def look(self) -> None:
        """Find out what can be done; what cannot be looked at is set aside or waits.

        The lock is ours, so what was found stays true but for the clock. In a busy stretch a
        partition is looked at again after its round, when its settings change, and when the last
        look is older than the back-off. Otherwise a thousand partitions would take a million looks.
        """
        known, now_ms, root = self._known, self._clock.now_ms(), self._settings.root
        check_held(root)
        self.ledger.looked_ms = now_ms
        facts = {
            each.partition: each
            for each in (decided_facts(root, report) for report in known.selection.decided)
        }
        self._clear_marks()
        decided = {TopicPartition(x.topic, x.partition) for x in known.selection.decided}
        # Once a log: the lock is ours, so that no other swap is cut off in it.
        end_swaps(sorted(decided - self._ended), root, self._files, self.ledger.narrator.warned)
        self._ended = decided
        open_requests = []
        for request in known.selection.partitions:
            history = self._schedule.history(request.partition)
            mark = self._schedule.marks.get(request.partition)
            if mark is not None:
                facts[request.partition] = self._failing(request, mark.reason, mark)
            elif self._schedule.is_waiting(request.partition, now_ms):
                reason = str(history.failure)
                facts[request.partition] = self._failing(request, reason)
            else:
                open_requests.append(request)
        asked = self._request(open_requests)
        kept = {
            each.partition: known.findings[each.partition]
            for each in open_requests
            if self._is_fresh(each, asked, now_ms)
        }
        stale = [each for each in open_requests if each.partition not in kept]
        known.fresh = look_at(
            stale, asked, root, self._coordinator, self._files, now_ms, detail=self._detail
        )
        if self._watched is not None:
            self._watched.take(known.selection, known.fresh)
        known.fresh = self._look_again(known.fresh, now_ms)
        for found in known.fresh:
            if found.recovered:
                self.ledger.narrator.warned(recovered_words(found.partition, found.recovered))
            if found.error is not None:
                self.ledger.note_failure(found.request, found.error)
            elif not found.is_eligible:
                self._schedule.recovered(found.partition)
        found_now = {found.partition: found for found in known.fresh}
        known.findings = {
            each.partition: found_now.get(each.partition) or kept[each.partition]
            for each in open_requests
        }
        facts |= {partition: self._facts(found) for partition, found in known.findings.items()}
        self.ledger.facts = facts
        self._note_failures()

    def _is_fresh(self, request: PartitionRequest, asked: CleanRequest, now_ms: int) -> bool:
        """Say whether a partition need not be looked at again."""
        found = self._known.findings.get(request.partition)
        return (
            found is not None
            and found.error is None
            and (found.request, found.expired) == (request, asked.expired)
            and 0 <= now_ms - found.looked_ms < max(self._known.cleaner.backoff_ms, LOOK_MS_MIN)
        )

    def _facts(self, found: LookFinding) -> PartitionFacts:
        history = self._schedule.history(found.partition)
        mark = self._schedule.marks.get(found.partition)
        if mark is not None:
            return self._failing(found.request, mark.reason, mark)
        if self._schedule.is_waiting(found.partition, self._clock.now_ms()):
            return self._failing(found.request, str(history.failure))
        return facts_of(found, history, self.ledger.facts.get(found.partition))

    def _failing(
        self, request: PartitionRequest, reason: str, mark: SetAside | None = None
    ) -> PartitionFacts:
        """Return what is published of a partition that fails.

        Of one that was set aside before this start nothing is known yet: it is surveyed, once, as
        far as that goes.
        """
        partition, history = request.partition, self._schedule.history(request.partition)
        if partition in self._unknown:
            self._unknown.remove(partition)
            with contextlib.suppress(Exception):
                checkpoints = load_checkpoints(self._files, self._settings.root)
                asked = self._request([request])
                survey = self._coordinator.survey(request, asked, checkpoints)
                now_ms = self.ledger.looked_ms
                found = LookFinding(request, now_ms, asked.expired, survey)
                self.ledger.facts[partition] = facts_of(found, history)
                self._detail(request, survey, checkpoints)
        return self.ledger.failing(request, history, reason, mark)

    def _look_again(self, fresh: Sequence[LookFinding], now_ms: int) -> list[LookFinding]:
        """Return the findings, those that were wished for with a round whatever their ratio.

        A wish is for the next turn: one for which nothing can be done then is over.
        """
        self._wished &= {found.partition for found in fresh}
        wished = [found.request for found in fresh if found.partition in self._wished]
        if not wished:
            return list(fresh)
        again = look_at(
            wished, self._request(wished, force=True), self._settings.root, self._coordinator,
            self._files, now_ms,
        )  # fmt: skip
        by_name = {found.partition: found for found in again if found.is_eligible}
        self._wished &= by_name.keys()
        return [
            replace(by_name[each.partition], log=each.log) if each.partition in by_name else each
            for each in fresh
        ]

    def candidates(self) -> Sequence[Candidate]:
        """Return the partitions that are worth a round; those wished for are alone in a turn."""
        return [
            replace(
                candidate_of(
                    found.survey,
                    found.partition,
                    passed_over=self._schedule.history(found.partition).passed_over,
                ),
                is_asked_for=found.partition in self._wished,
            )
            for found in self._known.findings.values()
            if found.is_eligible
            and found.survey is not None
            and (not self._wished or found.partition in self._wished)
        ]

    def clean(self, choices: Sequence[Choice]) -> tuple[TopicPartition, ...]:
        """Do one round of each chosen partition; returns those whose round ended."""
        known = self._known
        requests = {partition: found.request for partition, found in known.findings.items()}
        chosen = [requests[choice.partition] for choice in choices]
        ended = []
        # A turn has wished rounds or others, see candidates().
        is_wished = all(each.partition in self._wished for each in chosen)
        reports = self._apart(chosen, self._coordinator.clean, force=is_wished)
        # After the rounds: where nothing could be worked on the wish is still to be granted.
        self._wished -= {each.partition for each in chosen}
        for each in reports:
            partition = TopicPartition(each.topic, each.partition)
            rounds = [round_ for round_ in each.rounds if not is_stop(round_.failure)]
            for round_ in rounds:
                self.ledger.take(requests[partition], round_)
            if rounds:
                ended.append(partition)
            del known.findings[partition]
        return tuple(ended)

    def _apart(
        self,
        requests: Sequence[PartitionRequest],
        act: Callable[[CleanRequest], CleanReport],
        *,
        force: bool = False,
    ) -> Sequence[PartitionReport]:
        """Do something to partitions together; a defect of ours is the failure of one of them.

        Which one is found out: what others had staged was removed, and they are done once more.
        """
        try:
            return act(self._request(requests, force=force)).partitions
        except (CompactionError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - the loop that owns every round
            if len(requests) == 1:
                name = requests[0].partition
                rounds = (RoundReport(error=describe_error(error), failure=error),)
                expiry = failed_expiry(None, error)
                return [PartitionReport(name.topic, name.partition, rounds, expiry)]
        return [report for each in requests for report in self._apart([each], act, force=force)]

    def settle(self) -> bool:
        """Remove what retention and log starts let go, after the rounds as Kafka does it.

        Of what this turn looked at: that is each partition after a round and every back-off.
        Nothing of what is set aside or waits: an uncleanable log keeps what it has.
        """
        now_ms = self._clock.now_ms()
        requests = {
            found.partition: found.request
            for found in self._known.fresh
            if found.survey is not None
            and found.partition not in self._schedule.marks
            and not self._schedule.is_waiting(found.partition, now_ms)
        }
        if not requests:
            return False
        partitions = list(requests.values())
        for each in self._apart(partitions, self._coordinator.expire):
            partition = TopicPartition(each.topic, each.partition)
            if each.expiry is None:
                continue
            failure = each.expiry.failure
            if failure is not None and not is_stop(failure):
                self.ledger.failed(requests[partition], failure)
            elif each.expiry.segments:
                self.ledger.narrator.expired(partition, each.expiry)
        return False

    def _note_failures(self) -> None:
        """Write down which partitions fail, for commands outside this process.

        What an earlier start wrote stays until its partition had a round, or needs none.
        """
        known, root = self._known, self._settings.root
        found: dict[TopicPartition, SetAside] = {}
        for partition, history in self._schedule.histories.items():
            before, path = self._failures.get(partition), root / str(partition)
            finding = known.findings.get(partition)
            if partition in self._schedule.marks:
                continue
            if history.failure is not None:
                now_ms = self._clock.now_ms() if before is None else before.since_ms
                found[partition] = failing(self._files, partition, path, history.failure, now_ms)
            elif before and history.last_round is None and finding and finding.is_eligible:
                found[partition] = before
        if found == self._failures:
            return
        self._failures = found
        try:
            write_set_aside(self._files, root, found, FAILING_NAME)
        except OSError as error:
            # It is for status alone, which then promises what rests on rounds that fail.
            self.ledger.warn_once(f"which partitions fail could not be written down: {error}")

    def _set_aside(self, request: PartitionRequest, error: Exception) -> SetAside | None:
        """Set a partition aside when its failure lasts, and write it down."""
        if not is_lasting(error, request.path):
            return None
        try:
            mark = set_aside(
                self._files, request.partition, request.path, error, self._clock.now_ms()
            )
        except OSError:
            return None  # It cannot even be listed, and may come back.
        self._schedule.marks[request.partition] = mark
        self._write_marks()
        return mark

    def _clear_marks(self) -> None:
        """Forget marks of partitions that are gone, or that are other files by now."""
        kept: dict[TopicPartition, SetAside] = {}
        for partition, mark in self._schedule.marks.items():
            path = self._settings.root / str(partition)
            try:
                if not self._files.is_directory(path):
                    continue
                if fingerprint(self._files, path) == mark.fingerprint:
                    kept[partition] = mark
                else:
                    self.ledger.narrator.warned(
                        f"{partition} is other files by now and is tried again"
                    )
            except OSError:
                kept[partition] = mark
        if kept != self._schedule.marks:
            self._schedule.marks = kept
            self._write_marks()

    def _write_marks(self) -> None:
        try:
            write_set_aside(self._files, self._settings.root, self._schedule.marks)
        except OSError as error:
            # They count all the same; the next change, or the next start's look, writes them.
            self.ledger.narrator.warned(f"what is set aside could not be written down: {error}")
