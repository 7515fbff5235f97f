"""What a consumer group has committed, as the point that a state is of.

By the ``__consumer_offsets`` logs of the directory that the log is in, or by brokers. An offset of
which it is not sure that it is this log's makes no point: it is refused, and never taken for
nothing committed.
"""

from __future__ import annotations

from pathlib import Path

from keeplast.clock import Clock
from keeplast.errors import InvalidError, InvariantError, RefusedError
from keeplast.format.consumer_offsets import group_name
from keeplast.log.files import FileSystem
from keeplast.log.topic_id import read_topic_id
from keeplast.model.partition import TopicPartition
from keeplast.model.reader_wait import Absence, GroupReader, WaitedGroup
from keeplast.survey.group_offsets import FoundOffsets, GroupOffsets, waited_group
from keeplast.survey.log_bounds import load_checkpoints
from keeplast.survey.wording import absence_words


class GroupPoint:
    """The offsets of one group in the data directory ``root``, read once.

    ``name`` is what errors call the argument that gave the group. With ``brokers`` they are asked,
    and no file tells; ``where`` says in errors what is read, by default the directory.
    """

    def __init__(
        self,
        root: Path,
        group: str,
        files: FileSystem,
        clock: Clock,
        name: str,
        brokers: GroupReader | None = None,
        where: str = "",
    ) -> None:
        """Read what ``group`` has committed; InvalidError for what is no group's name."""
        group_name(group)
        self._group, self._files, self._name = group, files, name
        self._clock, self._brokers = clock, brokers
        self._where = where or f"path={root}"
        self._found: FoundOffsets | None = None
        if brokers is None:
            watermarks = load_checkpoints(files, root).high_watermark
            self._found = GroupOffsets(files).of(root, [group], watermarks, clock.now_ms())

    def find(self, partition: TopicPartition, path: Path, log_end: int) -> WaitedGroup:
        """Return what it has committed of the log in ``path``, which ends at ``log_end``.

        RefusedError for an offset of a topic that was deleted, one beyond the log end, and one that
        is not understood, or not told.
        """
        topic_id = read_topic_id(path, self._files)
        each = self._asked(partition, topic_id, log_end)
        if each.offset is None and each.absence not in (Absence.NOT_COMMITTED, Absence.NOT_HERE):
            raise RefusedError(
                f"the group's offsets make no checkpoint: it {absence_words(each)}; leave the "
                f"partition out, or give the offset itself. {self._name}={self._group!r} "
                f"partition={partition} {self._where}"
            )
        return each

    def _asked(
        self, partition: TopicPartition, topic_id: bytes | None, log_end: int
    ) -> WaitedGroup:
        if self._found is not None:
            return waited_group(self._group, partition, self._found, topic_id, log_end)
        if self._brokers is None:
            raise InvariantError("a group's offsets are told by files or by brokers")
        (each,) = self._brokers.waited(partition, [self._group], topic_id, self._clock.now_ms())
        return each

    def offset(self, partition: TopicPartition, path: Path, log_end: int) -> int:
        """Return the offset that it has committed, exclusive; InvalidError without one."""
        each = self.find(partition, path, log_end)
        if each.offset is None:
            raise self.nothing({absence_words(each)})
        return each.offset

    def nothing(self, words: set[str]) -> InvalidError:
        """Return the error that it has committed nothing for what was chosen; ``words`` say why."""
        return InvalidError(
            "the group has no committed offset for what was chosen: it "
            f"{'; '.join(sorted(words)) or 'was asked for no partition'}. "
            f"{self._name}={self._group!r} {self._where}"
        )
