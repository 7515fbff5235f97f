"""What the loop tells of each log to whoever watches it, as ``keeplast status`` would.

Made from surveys that were made anyway. Of what is set aside or waits it is what was last known, of
a log that was just cleaned too, until the next look.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from keeplast.config.selection import Selection
from keeplast.inspect.status import LogStatus, status_of_survey
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition
from keeplast.service.directory_look import DirectoryLook
from keeplast.service.look import LookFinding
from keeplast.service.set_aside import SetAside
from keeplast.service.status import daemon_pace, find_sizes, find_timestamp_ahead_max
from keeplast.survey.log_bounds import Checkpoints
from keeplast.survey.request import PartitionRequest
from keeplast.survey.survey import Survey


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
        measured = {
            each.partition: log.size_bytes for each, log in found if isinstance(log, LogStatus)
        }
        return DirectoryLook(
            self._root, looked_ms, True, daemon_pace(selection.settings.cleaner_config(), None),
            found, selection.decided, dict(marks), dict(failures),
            find_sizes(selection.directory, self._files, measured), selection.settings,
        )  # fmt: skip
