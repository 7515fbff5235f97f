"""By when traces of keys are gone from the logs of a data directory: one look, many keys."""

from __future__ import annotations

from collections.abc import Sequence

from keeplast.cleaner.erasure import find_turn_ms
from keeplast.config.selection import Selection
from keeplast.inspect.explain import KeyExplanation
from keeplast.inspect.remains import Remains, RemainsKind
from keeplast.inspect.status import ErasedBy
from keeplast.inspect.traces import (
    TOMBSTONE_WORDS,
    LastTrace,
    behind_files,
    behind_undo,
    find_last_trace,
    unless_unseen,
)
from keeplast.log.files import FileSystem
from keeplast.model.hold import GroupReader
from keeplast.model.partition import TopicPartition
from keeplast.service.snapshot import DirectoryLook, look_at_directory
from keeplast.service.status import find_last_rounds
from keeplast.survey.receipt_book import RoundReceipt

LEFT_WORDS = (
    "in files next to the log: what was staged or replaced goes with the next clean, run or start "
    "of a broker, what is kept for undo when its time is over"
)
STRANGE_WORDS = (
    "in files next to the log that no round removes: a directory out of service goes when a broker "
    "or an operator removes it, and a file whose name no broker gave when an operator does"
)


class TraceBounds:
    """What ``keeplast status`` says of the chosen logs as of ``now_ms``, and what follows."""

    undecided_words = TOMBSTONE_WORDS

    def __init__(
        self,
        selection: Selection,
        files: FileSystem,
        now_ms: int,
        receipts: Sequence[RoundReceipt] = (),
        brokers: GroupReader | None = None,
    ) -> None:
        """Look at the directory; errors are those of the directory itself.

        ``brokers`` read what consumer groups have committed, None where files do.
        """
        self.look: DirectoryLook = look_at_directory(selection, files, now_ms, brokers=brokers)
        standing = self.look.joined(files, find_last_rounds(receipts))
        self._states = {each.partition: each for each in standing.partitions}
        sizes = self.look.sizes
        self._turn_ms = find_turn_ms([*sizes.values()], standing.pace) if sizes else 0
        self._has_expired_rounds = selection.settings.cleaner_config().has_expired_rounds

    def erased_by(self, partition: TopicPartition) -> ErasedBy | None:
        """Return by when all that is overwritten now is gone, None when that is not known."""
        return self._states[partition].erased_by

    def erased_by_ms(self, partition: TopicPartition) -> int | None:
        """Return the same in ms since 1970."""
        erased = self.erased_by(partition)
        return None if erased is None else erased.by_ms

    def erased_words(self, partition: TopicPartition) -> str:
        """Return what that rests on, or why it is not known."""
        erased = self.erased_by(partition)
        return "no date while it cannot be looked at" if erased is None else erased.why

    def last_trace(
        self,
        found: KeyExplanation,
        remains: Sequence[Remains] = (),
        *,
        is_partly_unseen: bool = False,
    ) -> LastTrace:
        """Return by when the last record of the key is gone from its log and ``remains``."""
        undo_ms = found.topic.undo_retention_ms
        trace = find_last_trace(
            found, erased_by_ms=self.erased_by_ms(found.partition), turn_ms=self._turn_ms,
            has_expired_rounds=self._has_expired_rounds,
            kept_ms=undo_ms + self._turn_ms if undo_ms else 0,
        )  # fmt: skip
        left = [each for each in remains if each.kind is not RemainsKind.KEPT and each.records]
        if left:
            _, by_ms, words = self.remains_trace(found.partition, left)
            trace = behind_files(trace, by_ms, words)
        trace = behind_undo(trace, remains, found.now_ms, self._turn_ms)
        return unless_unseen(trace, is_partly_unseen=is_partly_unseen)

    def remains_trace(
        self, partition: TopicPartition, remains: Sequence[Remains]
    ) -> tuple[None, int | None, str]:
        """Return by when files next to a log are gone, None when not known, and how they go.

        A round removes what a round has left there, and nothing else. No clock decides when.
        """
        if all(each.kind is RemainsKind.LEFT for each in remains):
            return None, self.erased_by_ms(partition), LEFT_WORDS
        return None, None, STRANGE_WORDS
