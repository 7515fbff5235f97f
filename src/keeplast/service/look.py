"""One look at every partition of a data directory: what is found, and what can be done about it.

A look finishes what a crash left, repairs checkpoints that lie outside their log as a broker does
for every log that it examines, and surveys. A partition that cannot be surveyed is a finding like
any other; it keeps no other from being found. Kafka: ``grabFilthiestCompactedLog`` up to its
choice; cleaning.md 1.2 and 1.6.

For a console each look also says what ``keeplast status`` would, from surveys that were made
anyway. A log that is set aside, waits or was just cleaned has what was last known of it, until the
next look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from keeplast.cleaner.dirty_section import delay_ms
from keeplast.cleaner.reasons import DueReason, NothingBelow
from keeplast.config.selection import Selection
from keeplast.errors import CompactionError, error_text
from keeplast.format.filename import CLEANER_CHECKPOINT
from keeplast.inspect.status import LogStatus, status_of_survey
from keeplast.log.checkpoints import update_checkpoint
from keeplast.log.files import FileSystem
from keeplast.log.log_end import check_understood
from keeplast.log.recovery import is_settled, recover_swap
from keeplast.model.partition import TopicPartition
from keeplast.run.commit import shielded
from keeplast.run.coordinator import Coordinator
from keeplast.service.schedule import SetAside, TurnHistory, daemon_pace
from keeplast.service.snapshot import DirectoryLook, PartitionFacts
from keeplast.service.status import State, find_sizes, find_timestamp_ahead_max
from keeplast.survey.bounds import Checkpoints, load_checkpoints
from keeplast.survey.report import PartitionReport
from keeplast.survey.request import CleanRequest, PartitionRequest
from keeplast.survey.survey import Survey
from keeplast.survey.wording import due_briefly, skip_words

Detail = Callable[[PartitionRequest, Survey, Checkpoints], LogStatus | None]
"""What makes the status of a log from its survey; None when no console watches."""


class LookFinding(Struct, frozen=True):
    """A partition as found at ``looked_ms``: its survey, or the error in the place of one.

    ``expired`` says whether what has expired was looked for. ``log`` is what ``keeplast status``
    would say of it, or why it would not; None when no console watches.
    """

    request: PartitionRequest
    looked_ms: int
    expired: bool
    survey: Survey | None = None
    error: Exception | None = None
    recovered: int = 0
    log: LogStatus | Exception | None = None

    @property
    def partition(self) -> TopicPartition:
        """Return which partition it is."""
        return self.request.partition

    @property
    def is_eligible(self) -> bool:
        """True when a round is worth it."""
        return self.survey is not None and self.survey.plan is not None


def look_at(
    requests: Sequence[PartitionRequest],
    request: CleanRequest,
    root: Path,
    coordinator: Coordinator,
    files: FileSystem,
    now_ms: int,
    *,
    detail: Detail | None = None,
) -> list[LookFinding]:
    """Return a finding for each partition, in the order they were given.

    CorruptError or OSError when the directory's checkpoints cannot be read: nothing in it can be
    cleaned then, as for a broker, which takes such a directory offline. ``detail`` makes the status
    of each from its survey, for a console.
    """
    checkpoints = load_checkpoints(files, root)
    findings = []
    repairs: dict[TopicPartition, int] = {}
    for each in requests:
        found = _look_at(each, request, checkpoints, coordinator, files, now_ms)
        if detail is not None:
            found = replace(found, log=_detailed(found, checkpoints, detail))
        findings.append(found)
        if found.survey is not None and found.survey.section.first_dirty.repairs:
            repairs[each.partition] = found.survey.section.first_dirty.offset
    if repairs:
        update_checkpoint(files, root, CLEANER_CHECKPOINT, repairs)
    return findings


def _look_at(
    partition: PartitionRequest,
    request: CleanRequest,
    checkpoints: Checkpoints,
    coordinator: Coordinator,
    files: FileSystem,
    now_ms: int,
) -> LookFinding:
    try:
        check_understood(partition.path, files)
        with shielded():
            recovered = len(recover_swap(files, partition.path))
        survey = coordinator.survey(partition, request, checkpoints)
    except Exception as error:  # noqa: BLE001 - whatever one partition does, the others go on
        return LookFinding(partition, now_ms, request.expired, error=error)
    return LookFinding(partition, now_ms, request.expired, survey, recovered=recovered)


def _detailed(
    found: LookFinding, checkpoints: Checkpoints, detail: Detail
) -> LogStatus | Exception | None:
    """Return the status of a log; what goes wrong while it is made touches no other log."""
    if found.survey is None:
        return found.error
    try:
        return detail(found.request, found.survey, checkpoints)
    except Exception as error:  # noqa: BLE001 - a picture must not cost a round
        return error


def end_swaps(
    partitions: Sequence[TopicPartition],
    root: Path,
    files: FileSystem,
    warned: Callable[[str], None],
) -> None:
    """End swaps that a crash cut off in logs that settings keep from being looked at.

    Their policy was another one when the swap began. ``warned`` hears of those that were ended, and
    of those that cannot be, which are left to a broker's start.
    """
    for partition in partitions:
        path = root / str(partition)
        try:
            if is_settled(files, path):
                continue
            check_understood(path, files)
            with shielded():
                warned(recovered_words(partition, len(recover_swap(files, path))))
        except (CompactionError, OSError) as error:
            warned(f"{partition}: {error_text(error)}")


def recovered_words(partition: TopicPartition, count: int) -> str:
    """Say that ``count`` files of an interrupted swap, or round, were dealt with."""
    return f"finished or undid what an earlier run left in {partition}: {count} files"


def facts_of(
    finding: LookFinding, history: TurnHistory, last: PartitionFacts | None = None
) -> PartitionFacts:
    """Return what is published of a partition that was surveyed, or that could not be.

    ``last`` is what was published of it the time before.
    """
    survey = finding.survey
    if survey is None:
        return failed_facts(
            finding.request, history, str(finding.error), now_ms=finding.looked_ms, last=last
        )
    if isinstance(survey.decision, DueReason):
        state, reason = State.ELIGIBLE, due_briefly(survey.decision)
    else:
        state, reason = State.NOT_DUE, skip_words(survey.decision, names_options=False)
    return PartitionFacts(
        finding.partition,
        finding.request.path,
        state,
        reason,
        log_start=survey.log_start,
        log_end=survey.tail.log_end,
        figures=survey.figures,
        surveyed_ms=finding.looked_ms,
        is_held_back=isinstance(survey.decision, NothingBelow)
        and survey.decision.holds_back
        and survey.figures.first_dirty < survey.tail.log_end,
        is_expired_round=survey.plan is not None and survey.plan.is_expired_round,
        rounds=history.rounds,
        last_round=history.last_round,
        last_round_ms=history.last_round_ms,
        failures=history.failures,
        retry_at_ms=history.retry_at_ms,
    )


def failed_facts(
    request: PartitionRequest,
    history: TurnHistory,
    reason: str,
    mark: SetAside | None = None,
    *,
    now_ms: int,
    last: PartitionFacts | None = None,
) -> PartitionFacts:
    """Return what is published of a partition that is set aside, or waits to be tried again.

    What ``last`` says of its log still counts: a log that fails is no less dirty, and at ``now_ms``
    it is as overdue as it was and more.
    """
    bare = PartitionFacts(request.partition, request.path, State.RETRYING, reason)
    figures = None
    if last is not None and last.figures is not None:
        delay = delay_ms(last.figures.overdue_from_ms, now_ms)
        bare, figures = last, replace(last.figures, compaction_delay_ms=delay)
    return replace(
        bare,
        path=request.path,
        state=State.RETRYING if mark is None else State.SET_ASIDE,
        reason=reason,
        figures=figures,
        is_held_back=False,
        is_expired_round=False,
        rounds=history.rounds,
        last_round=history.last_round,
        last_round_ms=history.last_round_ms,
        failures=history.failures,
        retry_at_ms=None if mark is not None else history.retry_at_ms,
        set_aside_since_ms=None if mark is None else mark.since_ms,
    )


def decided_facts(root: Path, report: PartitionReport) -> PartitionFacts:
    """Return what is published of a partition that its settings decide about."""
    partition = TopicPartition(report.topic, report.partition)
    last = report.rounds[-1]
    if last.error is not None:
        return PartitionFacts(partition, root / str(partition), State.REFUSED, last.error.message)
    return PartitionFacts(
        partition, root / str(partition), State.NOT_DUE, last.reason or "nothing to do"
    )


def all_partitions(selection: Selection) -> set[TopicPartition]:
    """Return every partition that the call is about, refused ones included."""
    decided = {TopicPartition(each.topic, each.partition) for each in selection.decided}
    return {each.partition for each in selection.partitions} | decided


def complaints(selection: Selection) -> list[str]:
    """Return what to report of settings: warnings, and partitions that they refuse."""
    refused = [
        f"{each.topic}-{each.partition}: {round_.error.message}"
        for each in selection.decided
        for round_ in each.rounds
        if round_.error is not None
    ]
    return [*selection.warnings, *refused]


class WatchedLogs:
    """The logs of one data directory."""

    def __init__(self, root: Path, files: FileSystem) -> None:
        """Take where they are."""
        self._root = root
        self._files = files
        self._logs: dict[TopicPartition, LogStatus | Exception] = {}

    def detail(
        self,
        selection: Selection,
        request: PartitionRequest,
        survey: Survey,
        checkpoints: Checkpoints,
        looked_ms: int,
    ) -> LogStatus:
        """Return the status of a log that was surveyed; reads some of its active segment."""
        ahead_ms = find_timestamp_ahead_max(selection.settings, request.partition.topic)
        found = status_of_survey(
            request, survey, checkpoints, self._files, looked_ms, timestamp_ahead_max_ms=ahead_ms
        )
        self._logs[request.partition] = found
        return found

    def take(self, selection: Selection, fresh: Iterable[LookFinding]) -> None:
        """Note what a look found, and forget partitions that are gone."""
        self._logs |= {each.partition: each.log for each in fresh if each.log is not None}
        here = {each.partition for each in selection.partitions}
        self._logs = {each: log for each, log in self._logs.items() if each in here}

    def look(
        self,
        selection: Selection,
        looked_ms: int,
        marks: Mapping[TopicPartition, SetAside],
        failures: Mapping[TopicPartition, SetAside],
    ) -> DirectoryLook:
        """Return the last look, which the loop made while it held the lock."""
        found = tuple(
            (each, self._logs[each.partition])
            for each in selection.partitions
            if each.partition in self._logs
        )
        return DirectoryLook(
            self._root, looked_ms, True, daemon_pace(selection.settings.cleaner_config(), None),
            found, selection.decided, dict(marks), dict(failures),
            find_sizes(selection.directory, self._files, found), selection.settings,
        )  # fmt: skip
