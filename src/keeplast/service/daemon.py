"""The loop of ``keeplast run``: look, choose, clean, publish; wait when nothing is worth it.

One turn takes as many partitions as there are workers and does one round of each, as so many of a
broker's cleaner threads would; then everything is looked at anew. What a reader must not break:

1. The data directory's lock is held from start to end.
2. Nothing is remembered that the directory does not say: after ``kill -9`` the next start goes on
   from the files alone. Only the list of what is set aside and the receipts are ours.
3. No partition's failure ends the loop or keeps another from its turn
   (:mod:`keeplast.service.schedule`).
4. Settings are read again before each turn. Those that cannot be used are said once, and the last
   good ones stay.

Kafka: ``CleanerThread.doWork``; cleaning.md 1.1.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from keeplast.cleaner.selection import Choice, choose
from keeplast.clock import Clock
from keeplast.config.selection import Selection
from keeplast.engine.coordinator import Coordinator
from keeplast.engine.expiry import failed_expiry
from keeplast.engine.report import CleanReport, PartitionReport, RoundReport, describe_error
from keeplast.engine.request import CleanRequest, PartitionRequest
from keeplast.engine.rounds import candidate_of
from keeplast.errors import CompactionError, CorruptError, UnavailableError
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import CleanerConfig
from keeplast.service.look import (
    Finding,
    all_partitions,
    decided_facts,
    facts_of,
    failed_facts,
    look_at,
)
from keeplast.service.narrator import Narrator
from keeplast.service.receipts import receipts_file
from keeplast.service.run_report import RunReport, run_report
from keeplast.service.schedule import Schedule, is_lasting, is_stop
from keeplast.service.set_aside import (
    SetAside,
    fingerprint,
    read_set_aside,
    set_aside,
    write_set_aside,
)
from keeplast.service.snapshot import Observer, PartitionFacts, PartitionState, Snapshot

LOOK_MS_MIN = 1000
NAP_SECONDS = 0.25
"""A pause is slept in parts, so that it ends soon when a stop is asked for."""


@dataclass(frozen=True, slots=True)
class DaemonSettings:
    """What stays the same from start to end.

    ``select`` reads settings and partitions anew. ``request`` is what every round is asked for:
    memory, order, whether idle segments are rolled. ``is_once`` ends the loop when nothing is
    eligible; ``retries`` forgets what is set aside.
    """

    root: Path
    select: Callable[[], Selection]
    request: CleanRequest
    is_once: bool = False
    retries: bool = False


@dataclass(slots=True)
class _Known:
    """What was found, and the settings that count since the last turn.

    ``fresh`` are the findings of this turn's look; the others are of earlier ones.
    """

    selection: Selection
    cleaner: CleanerConfig
    findings: dict[TopicPartition, Finding] = field(default_factory=dict)
    fresh: list[Finding] = field(default_factory=list)
    facts: dict[TopicPartition, PartitionFacts] = field(default_factory=dict)
    looked_ms: int = 0


class Daemon:
    """Does rounds until it is stopped, or until nothing is eligible."""

    def __init__(
        self,
        coordinator: Coordinator,
        clock: Clock,
        files: FileSystem,
        settings: DaemonSettings,
        *,
        narrator: Narrator,
        observer: Observer,
    ) -> None:
        """Take the components; nothing is read before :meth:`run`."""
        self._coordinator = coordinator
        self._clock = clock
        self._files = files
        self._settings = settings
        self._narrator = narrator
        self._observer = observer
        self._schedule = Schedule()
        self._is_stopping = False
        self._turn = 0
        self._told: set[str] = set()

    def stop(self) -> None:
        """Ask for the end at the next safe point; a signal handler may call it."""
        self._is_stopping = True
        self._coordinator.stop()

    def run(self) -> RunReport:
        """Run; returns what was done.

        RefusedError when the directory is in use; what settings can be wrong about raises at the
        start only. CorruptError or OSError when the directory's own checkpoints cannot be read.
        """
        started, started_ms = self._clock.seconds(), self._clock.now_ms()
        selection = self._settings.select()
        known = _Known(selection, selection.settings.cleaner_config())
        self._warn(_complaints(selection))
        snapshot = self._snapshot(known, started_ms, ())
        with self._coordinator.holding(self._settings.root):
            self._load_marks()
            while not self._is_stopping:
                self._reselect(known)
                try:
                    self._look(known)
                    snapshot = self._publish(known, started_ms, ())
                    choices = self._choose(known)
                    cleaned: tuple[TopicPartition, ...] = ()
                    if choices:
                        self._turn += 1
                        cleaned = self._clean(known, choices)
                    self._expire(known)
                    if choices:
                        snapshot = self._publish(known, started_ms, cleaned)
                        continue
                except (OSError, UnavailableError) as error:
                    # Of one partition it would be that one's failure: this is the directory's.
                    if self._settings.is_once:
                        raise
                    self._narrator.warned(f"the directory cannot be worked on now: {error}")
                if self._settings.is_once:
                    break
                self._idle(known, snapshot)
                known.findings = {}
        return run_report(
            snapshot, self._schedule, known.selection, self._clock.seconds() - started
        )

    def _load_marks(self) -> None:
        if self._settings.retries:
            write_set_aside(self._files, self._settings.root, {})
            return
        try:
            self._schedule.marks = read_set_aside(self._files, self._settings.root)
        except CorruptError as error:
            self._narrator.warned(f"{error}; what was set aside is tried again")

    def _reselect(self, known: _Known) -> None:
        """Read settings and list partitions again; bad ones are told once and change nothing."""
        try:
            selection = self._settings.select()
            known.cleaner = selection.settings.cleaner_config()
            known.selection = selection
            self._warn(_complaints(selection))
        except (CompactionError, OSError) as error:
            self._warn([f"the last good settings stay: {error}"])
        self._schedule.keep(all_partitions(known.selection))

    def _warn(self, messages: Sequence[str]) -> None:
        """Tell what was not told the time before."""
        for message in messages:
            if message not in self._told:
                self._narrator.warned(message)
        self._told = set(messages)

    def _request(self, known: _Known, partitions: Sequence[PartitionRequest]) -> CleanRequest:
        return replace(
            self._settings.request,
            partitions=tuple(partitions),
            expired=known.cleaner.has_expired_rounds,
            receipt=receipts_file(self._files, self._settings.root),
        )

    def _look(self, known: _Known) -> None:
        """Find out what can be done; what cannot be looked at is set aside or waits.

        The lock is ours, so what was found stays true but for the clock: in a busy stretch a
        partition is looked at again after its round, when its settings change, and when the last
        look is older than the back-off. Otherwise a thousand partitions would take a million looks.
        """
        now_ms = known.looked_ms = self._clock.now_ms()
        facts = {
            each.partition: each
            for each in (
                decided_facts(self._settings.root, report) for report in known.selection.decided
            )
        }
        self._clear_marks()
        open_requests = []
        for request in known.selection.partitions:
            history = self._schedule.history(request.partition)
            mark = self._schedule.marks.get(request.partition)
            if mark is not None:
                facts[request.partition] = failed_facts(request, history, mark.reason, mark)
            elif self._schedule.is_waiting(request.partition, now_ms):
                reason = str(history.failure)
                facts[request.partition] = failed_facts(request, history, reason)
            else:
                open_requests.append(request)
        asked = self._request(known, open_requests)
        kept = {
            each.partition: known.findings[each.partition]
            for each in open_requests
            if self._is_fresh(known, each, asked, now_ms)
        }
        stale = [each for each in open_requests if each.partition not in kept]
        known.fresh = look_at(
            stale, asked, self._settings.root, self._coordinator, self._files, now_ms
        )
        for found in known.fresh:
            if found.recovered:
                self._narrator.warned(
                    f"finished or undid what an earlier run left in {found.partition}: "
                    f"{found.recovered} files"
                )
            if found.error is not None:
                self._failed(known, found.request, found.error)
            elif not found.is_eligible:
                self._schedule.recovered(found.partition)
        found_now = {found.partition: found for found in known.fresh}
        known.findings = {
            each.partition: found_now.get(each.partition) or kept[each.partition]
            for each in open_requests
        }
        facts |= {partition: self._facts(found) for partition, found in known.findings.items()}
        known.facts = facts

    def _is_fresh(
        self, known: _Known, request: PartitionRequest, asked: CleanRequest, now_ms: int
    ) -> bool:
        """Say whether a partition need not be looked at again."""
        found = known.findings.get(request.partition)
        return (
            found is not None
            and found.error is None
            and (found.request, found.expired) == (request, asked.expired)
            and now_ms - found.looked_ms < max(known.cleaner.backoff_ms, LOOK_MS_MIN)
        )

    def _facts(self, found: Finding) -> PartitionFacts:
        history = self._schedule.history(found.partition)
        mark = self._schedule.marks.get(found.partition)
        if mark is not None:
            return failed_facts(found.request, history, mark.reason, mark)
        if self._schedule.is_waiting(found.partition, self._clock.now_ms()):
            return failed_facts(found.request, history, str(history.failure))
        return facts_of(found, history)

    def _choose(self, known: _Known) -> tuple[Choice, ...]:
        """Return the partitions of the next turn; counts who was passed over."""
        eligible = [found for found in known.findings.values() if found.is_eligible]
        candidates = [
            candidate_of(
                found.survey,
                found.partition,
                passed_over=self._schedule.history(found.partition).passed_over,
            )
            for found in eligible
            if found.survey is not None
        ]
        order = self._settings.request.order
        choices = choose(candidates, self._coordinator.slots, order)
        chosen = {choice.partition for choice in choices}
        self._schedule.passed_over({each.partition for each in candidates}, chosen)
        return choices

    def _clean(self, known: _Known, choices: Sequence[Choice]) -> tuple[TopicPartition, ...]:
        """Do one round of each chosen partition; returns those whose round ended."""
        self._narrator.chosen(choices)
        requests = {partition: found.request for partition, found in known.findings.items()}
        chosen = [requests[choice.partition] for choice in choices]
        ended = []
        for each in self._apart(known, chosen, self._coordinator.clean, _failed_clean):
            partition = TopicPartition(each.topic, each.partition)
            rounds = [round_ for round_ in each.rounds if not is_stop(round_.failure)]
            for round_ in rounds:
                self._take(known, requests[partition], round_)
            if rounds:
                ended.append(partition)
            del known.findings[partition]
        return tuple(ended)

    def _apart(
        self,
        known: _Known,
        requests: Sequence[PartitionRequest],
        act: Callable[[CleanRequest], CleanReport],
        fail: Callable[[Exception], PartitionReport],
    ) -> Sequence[PartitionReport]:
        """Do something to partitions together; a defect of ours is the failure of one of them.

        Which one is found out: what others had staged was removed, and they are done once more.
        """
        try:
            return act(self._request(known, requests)).partitions
        except (CompactionError, OSError):
            raise
        except Exception as error:  # noqa: BLE001 - the loop that owns every round
            if len(requests) == 1:
                name = requests[0].partition
                return [replace(fail(error), topic=name.topic, partition=name.partition)]
        return [report for each in requests for report in self._apart(known, [each], act, fail)]

    def _take(self, known: _Known, request: PartitionRequest, round_: RoundReport) -> None:
        """Note how a round ended."""
        partition = request.partition
        self._schedule.finished(partition, round_, self._clock.now_ms())
        failure = round_.failure or _without_progress(round_)
        if failure is not None:
            self._failed(known, request, failure)
        history = self._schedule.history(partition)
        mark = self._schedule.marks.get(partition)
        if failure is not None:
            reason = str(failure) if mark is None else mark.reason
            known.facts[partition] = failed_facts(request, history, reason, mark)
            return
        known.facts[partition] = replace(
            known.facts[partition],
            state=PartitionState.WAITING,
            reason="cleaned just now",
            rounds=history.rounds,
            last_round=history.last_round,
            last_round_ms=history.last_round_ms,
            failures=0,
            retry_at_ms=None,
        )

    def _expire(self, known: _Known) -> None:
        """Remove what retention and log starts let go, behind the rounds as Kafka does it.

        Of what this turn looked at: that is each partition after a round and every back-off.
        Nothing of what is set aside or waits: an uncleanable log keeps what it has.
        """
        now_ms = self._clock.now_ms()
        requests = {
            found.partition: found.request
            for found in known.fresh
            if found.survey is not None
            and found.partition not in self._schedule.marks
            and not self._schedule.is_waiting(found.partition, now_ms)
        }
        if not requests or self._is_stopping:
            return
        partitions = list(requests.values())
        for each in self._apart(known, partitions, self._coordinator.expire, _failed_expiry):
            partition = TopicPartition(each.topic, each.partition)
            if each.expiry is None:
                continue
            failure = each.expiry.failure
            if failure is not None and not is_stop(failure):
                self._failed(known, requests[partition], failure)
                history = self._schedule.history(partition)
                mark = self._schedule.marks.get(partition)
                facts = failed_facts(requests[partition], history, str(failure), mark)
                known.facts[partition] = facts
            elif each.expiry.segments:
                self._narrator.expired(partition, each.expiry)

    def _failed(self, known: _Known, request: PartitionRequest, error: Exception) -> None:
        """Set a partition aside, or let it wait."""
        now_ms = self._clock.now_ms()
        if is_lasting(error, request.path):
            with contextlib.suppress(OSError):  # then it cannot even be listed, and may come back
                mark = set_aside(self._files, request.partition, request.path, error, now_ms)
                self._schedule.marks[request.partition] = mark
                self._narrator.set_aside(request.partition, mark.reason)
                self._write_marks()
                return
        pause_ms = self._schedule.failed(
            request.partition, error, backoff_ms=known.cleaner.backoff_ms, now_ms=now_ms
        )
        self._narrator.retrying(request.partition, str(error), pause_ms / 1000)

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
                    self._narrator.warned(f"{partition} is other files by now and is tried again")
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
            self._narrator.warned(f"what is set aside could not be written down: {error}")

    def _idle(self, known: _Known, snapshot: Snapshot) -> None:
        """Wait until the next look; a partition that waits to be tried again may end it sooner."""
        seconds = max(known.cleaner.backoff_ms / 1000, NAP_SECONDS)
        self._narrator.idle(snapshot, seconds)
        until = self._clock.seconds() + seconds
        while not self._is_stopping:
            left = until - self._clock.seconds()
            if left <= 0:
                return
            self._clock.sleep(min(left, NAP_SECONDS))

    def _snapshot(
        self, known: _Known, started_ms: int, cleaned: tuple[TopicPartition, ...]
    ) -> Snapshot:
        return Snapshot(
            self._settings.root,
            started_ms,
            known.looked_ms,
            self._turn,
            self._coordinator.slots,
            tuple(facts for _, facts in sorted(known.facts.items())),
            cleaned,
        )

    def _publish(
        self, known: _Known, started_ms: int, cleaned: tuple[TopicPartition, ...]
    ) -> Snapshot:
        snapshot = self._snapshot(known, started_ms, cleaned)
        self._observer.published(snapshot)
        return snapshot


def _failed_clean(error: Exception) -> PartitionReport:
    return PartitionReport("", 0, (RoundReport(error=describe_error(error), failure=error),))


def _failed_expiry(error: Exception) -> PartitionReport:
    return PartitionReport("", 0, (), failed_expiry(None, error))


def _complaints(selection: Selection) -> list[str]:
    """Return what is to be told of settings: warnings, and partitions that they refuse."""
    refused = [
        f"{each.topic}-{each.partition}: {round_.error.message}"
        for each in selection.decided
        for round_ in each.rounds
        if round_.error is not None
    ]
    return [*selection.warnings, *refused]


def _without_progress(round_: RoundReport) -> Exception | None:
    """Return an error for a round that would only be repeated, None when it led somewhere."""
    if round_.skipped or round_.is_expired_round or round_.end_offset is None:
        return None
    if round_.first_dirty is None or round_.end_offset > round_.first_dirty:
        return None
    return UnavailableError(f"the round ended where it began. offset={round_.end_offset}")
