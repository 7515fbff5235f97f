"""Small logs whose cleaning is worth crashing, each with what makes its swap dangerous.

A scenario gives the directory before, and the settings under which one call cleans all of it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from keeplast.format.batch import encode_batch
from keeplast.format.producer_snapshot import ProducerEntry
from keeplast.format.record import ControlType, EndTransactionMarker, Record, encode_end_transaction
from keeplast.format.txn_index import AbortedTransaction
from keeplast.model.partition import RELATIVE_OFFSET_MAX
from keeplast.model.topic_config import TopicConfig
from keeplast.run.foresight import RESERVE_BYTES_MIN
from tests.support.crashing_files import DEFAULT_FREE_BYTES, Image, load_image
from tests.support.mixed_log import write_mixed_log
from tests.support.partition_maker import (
    COMPACT,
    DAY_MS,
    NOW_MS,
    SMALL_SEGMENTS,
    data_batch,
    marker,
    one,
    write_partition,
    write_segment,
    write_snapshot,
)

MERGING = replace(COMPACT, segment_bytes=700)
EXPIRED_MS = NOW_MS - DAY_MS
"""A delete horizon that has passed."""
FAR = RELATIVE_OFFSET_MAX + 1
ABORTED_BELOW = [AbortedTransaction(7, 0, 2, 3)]


class CrashLog(Struct, frozen=True):
    """``write`` makes the partition below a root. ``free_bytes`` decides how many waves there are.

    ``is_same_bytes`` says that a call that was interrupted and repeated leaves the same segments as
    one that was not; otherwise the same batches, as segments that one call has made small enough
    may merge in the next. ``rolls_active`` and ``has_receipt`` are options of the call.
    """

    write: Callable[[Path], Path]
    topic: TopicConfig
    free_bytes: int = DEFAULT_FREE_BYTES
    is_same_bytes: bool = False
    rolls_active: bool = False
    has_receipt: bool = False

    def image(self, root: Path) -> Image:
        """Return the directory as it is before; it is made below ``root`` and removed again."""
        root.mkdir(parents=True, exist_ok=True)
        directory = self.write(root)
        image = load_image(root)
        shutil.rmtree(directory)
        return image


def room_for(size_bytes: int) -> int:
    """Return free bytes of which ``size_bytes`` may be used for staging."""
    return RESERVE_BYTES_MIN + size_bytes


def _tombstone(offset: int, key: bytes) -> bytes:
    """Return a tombstone that has to go now."""
    return encode_batch([Record(offset, NOW_MS, key, None)], delete_horizon_ms=EXPIRED_MS)


def _expired_marker(offset: int, producer_id: int) -> bytes:
    """Return the marker of an aborted transaction whose data is gone, which has to go now."""
    key, value = encode_end_transaction(EndTransactionMarker(ControlType.ABORT, 0))
    return encode_batch(
        [Record(offset, NOW_MS, key, value)],
        producer_id=producer_id,
        producer_epoch=0,
        is_transactional=True,
        is_control=True,
        delete_horizon_ms=EXPIRED_MS,
    )


def _write_with_aborted(
    root: Path,
    segments: Mapping[int, bytes],
    aborted: Mapping[int, list[AbortedTransaction]],
) -> Path:
    directory = write_partition(root, segments)
    for base, entries in aborted.items():
        write_segment(directory, base, segments[base], aborted=entries)
    for base in segments:
        if base:
            write_snapshot(directory, base)
    return directory


def _vanishing_tails(root: Path) -> Path:
    """Groups whose ends vanish: a value, its expired tombstone; aborted data and its marker.

    What a start-up removes on account of a completed swap reaches no further than the output. If
    of the rest a tombstone went first, the value it deletes would be back.
    """
    big = b"v" * 60
    segments = {
        0: one(0, b"keep", big) + one(1, b"k", b"old"),
        10: one(10, b"k", b"older") + one(11, b"m", b"old"),
        20: _tombstone(20, b"k") + _tombstone(21, b"m"),
        30: one(30, b"stay", big) + one(31, b"p", b"old"),
        40: data_batch(40, 7, [b"stay"]) + one(41, b"p", b"older"),
        50: marker(50, 7, ControlType.ABORT) + _tombstone(51, b"p"),
        60: one(60, b"end", b"1"),
        70: one(70, b"end", b"2"),
    }
    aborted = {50: [AbortedTransaction(7, 40, 50, 51)]}
    directory = _write_with_aborted(root, segments, aborted)
    write_snapshot(directory, 70, [ProducerEntry(7, 0, -1, 50, 0, NOW_MS, 0, -1)])
    return directory


def _emptied_segments(root: Path) -> Path:
    """Segments of which nothing stays, one of them with an aborted transaction in its index.

    The producer commits later. A reader that knows of the abort and finds no marker for it takes
    the committed records for aborted, and so would the next round.
    """
    segments = {
        0: _expired_marker(2, 7),
        10: data_batch(10, 7, [b"x", b"y"]) + marker(12, 7, ControlType.COMMIT),
        20: one(20, b"a", b"1") + one(21, b"b", b"1"),
        30: _tombstone(30, b"a") + one(31, b"c", b"1"),
        40: one(40, b"b", b"2") + one(41, b"c", b"2"),
        50: one(50, b"a", b"last"),
    }
    directory = _write_with_aborted(root, segments, {0: ABORTED_BELOW})
    write_snapshot(directory, 50, [ProducerEntry(7, 0, 1, 11, 1, NOW_MS, 0, -1)])
    return directory


def _split_segment(root: Path) -> Path:
    """A segment whose offsets are too far apart for one becomes two, its neighbours one each."""
    segments = {
        0: one(0, b"a", b"1") + one(1, b"b", b"1"),
        10: one(10, b"a", b"2") + one(11, b"c", b"1") + one(11 + FAR, b"d", b"1"),
        12 + FAR: one(12 + FAR, b"c", b"2") + one(13 + FAR, b"b", b"2"),
        20 + FAR: one(20 + FAR, b"e", b"1"),
    }
    return _write_with_aborted(root, segments, {})


def _with_strays(write: Callable[[Path], Path]) -> Callable[[Path], Path]:
    """Add what a crashed broker and attempts that lost leave next to a log."""

    def write_more(root: Path) -> Path:
        directory = write(root)
        first, second = sorted(int(path.stem) for path in directory.glob("*.log"))[:2]
        half = (directory / f"{first:020d}.log").read_bytes()[:40]
        for name in (
            f"{first:020d}.log.0a1b.deleted",
            f"{first:020d}.index.0a1b.deleted",
            f"{second:020d}.log.ffff.deleted",
            f"{first:020d}.log.cleaned",
            f"{first:020d}.index.cleaned",
            f"{second:020d}.log.swap",
            f"{second:020d}.timeindex.swap",
            f"{first:020d}.timeindex.deleted",
        ):
            (directory / name).write_bytes(half)
        return directory

    return write_more


CRASH_LOGS: dict[str, CrashLog] = {
    "merged": CrashLog(write_mixed_log, MERGING),
    "merged in waves": CrashLog(write_mixed_log, MERGING, room_for(700)),
    "one by one": CrashLog(write_mixed_log, SMALL_SEGMENTS),
    "one by one in waves": CrashLog(write_mixed_log, SMALL_SEGMENTS, room_for(700)),
    "strays": CrashLog(_with_strays(write_mixed_log), SMALL_SEGMENTS, room_for(1500)),
    "vanishing tails": CrashLog(_vanishing_tails, replace(COMPACT, segment_bytes=520)),
    "vanishing tails in waves": CrashLog(
        _vanishing_tails, replace(COMPACT, segment_bytes=520), room_for(520)
    ),
    "emptied": CrashLog(_emptied_segments, SMALL_SEGMENTS),
    "emptied and merged": CrashLog(_emptied_segments, replace(COMPACT, segment_bytes=260)),
    "split": CrashLog(_split_segment, SMALL_SEGMENTS, is_same_bytes=True),
    "rolled": CrashLog(write_mixed_log, MERGING, rolls_active=True),
    "with a receipt in waves": CrashLog(write_mixed_log, MERGING, room_for(700), has_receipt=True),
}
