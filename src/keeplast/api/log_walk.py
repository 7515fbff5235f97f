"""Walks through a log that may be cleaned meanwhile: every batch once, every record as it is.

What a reader must not break: offsets never change, so that whoever loses a file goes on behind the
last batch that was given, and misses nothing that was final.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from keeplast.clock import SystemClock
from keeplast.errors import CorruptError
from keeplast.format.message_set import Batch
from keeplast.format.record import Record
from keeplast.log.files import FileSystem
from keeplast.log.log_end import noted_high_watermark, sound_tail
from keeplast.log.log_start import noted_log_start
from keeplast.log.partition_log import SegmentFiles
from keeplast.log.settled import settled_partition
from keeplast.read.log_reader import read_segment
from keeplast.survey.file_notes import torn_tail
from keeplast.survey.wording import note_words

RELISTS_MAX = 100
"""A directory that changes so often before one batch is read is not a log that is being cleaned."""


@dataclass(frozen=True, slots=True)
class LogWalk:
    """The partition directory ``path`` as ``files`` show it."""

    files: FileSystem
    path: Path

    def records(self, from_offset: int, key: bytes | None) -> Iterator[Record]:
        """Yield the records at or above ``from_offset``, of ``key`` alone where there is one."""
        for segment, batch in self.batches(from_offset):
            _check_crc(segment, batch)
            if batch.is_control:
                continue
            try:
                for record in batch.records():
                    is_wanted = key is None or record.key == key
                    if is_wanted and record.offset >= from_offset:
                        yield record
            except CorruptError as error:
                raise _locate_error(error, segment, batch) from error

    def batches(self, from_offset: int) -> Iterator[tuple[SegmentFiles, Batch]]:
        """Yield batches once each and in order, also when segments are replaced meanwhile.

        A file that is open stays readable when a swap removes its name. One whose name is gone
        before it was opened has a successor, found by listing again: offsets never change, so the
        reader goes on behind the last one it gave.
        """
        replicated = noted_high_watermark(self.files, self.path)
        following = from_offset
        listed, at = self._list(following), 0
        relists = 0
        while at < len(listed):
            segment = listed[at]
            try:
                for batch in self._read(segment, is_active=at == len(listed) - 1):
                    # A file of that name may be a merged one by now, and reach further.
                    if batch.last_offset >= following:
                        following = batch.last_offset + 1
                        relists = 0
                        yield segment, batch
                at += 1
            except FileNotFoundError:
                relists += 1
                if relists > RELISTS_MAX:
                    raise
                listed, at = self._list(following), 0
        if replicated is not None and max(following, _last_base(listed)) < replicated:
            self._require_end(replicated)

    def _list(self, from_offset: int) -> tuple[SegmentFiles, ...]:
        """Return the segments that may hold ``from_offset`` and what follows."""
        files, start = self.files, noted_log_start(self.files, self.path)
        listed = settled_partition(self.path, files, SystemClock(), if_empty=start).segments
        if len(listed) == 1 and not listed[0].size_bytes:
            return ()  # the only segment of an empty log may have no file
        first = [i for i, each in enumerate(listed) if each.base_offset <= from_offset]
        return listed[first[-1] if first else 0 :]

    def _read(self, segment: SegmentFiles, *, is_active: bool) -> Iterator[Batch]:
        try:
            yield from read_segment(self.files, segment.log_path)
        except CorruptError:
            if not is_active:
                raise
            self._require_end(noted_high_watermark(self.files, self.path))

    def _require_end(self, replicated: int | None) -> None:
        """Raise CorruptError unless the log ends where it was read to; a torn end is told."""
        start, clock = noted_log_start(self.files, self.path), SystemClock()
        listing = settled_partition(self.path, self.files, clock, if_empty=start)
        torn = torn_tail(listing, sound_tail(listing, replicated, self.files, clock))
        if torn is not None:
            warnings.warn(f"{note_words(torn)}. path={self.path}", stacklevel=2)


def _last_base(listed: tuple[SegmentFiles, ...]) -> int:
    return listed[-1].base_offset if listed else 0


def _check_crc(segment: SegmentFiles, batch: Batch) -> None:
    if not batch.is_valid:
        raise CorruptError(
            "crc mismatch",
            path=str(segment.log_path),
            position=batch.position,
            expected=f"{batch.crc:#010x}",
            found=f"{batch.computed_crc:#010x}",
        )


def _locate_error(error: CorruptError, segment: SegmentFiles, batch: Batch) -> CorruptError:
    """Return ``error`` with the place of the batch in which it was found."""
    return CorruptError(
        error.problem,
        path=str(segment.log_path),
        position=batch.position,
        expected=error.expected,
        found=error.found,
    )
