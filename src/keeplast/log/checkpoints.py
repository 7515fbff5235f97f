"""The checkpoint files of a data directory, and the note of a round that replaces segments.

The checkpoint files are read and written as a broker does. A line for a partition that is not in
the directory is kept on a write: a stopped broker may have put its other directories' partitions
nowhere else. Source: cleaning.md section 1.9, formats.md 2.8.

A call asks for the same files once a partition, and writes one of them as often. The bytes are read
each time, since they are what counts; parsed they are once: ten thousand partitions would otherwise
parse ten thousand lines ten thousand times.

A note is a small file next to the log: how far a round has looked that puts something in place. The
cleaner's checkpoint moves when a round is over. From the round's first swap until then, records
above the checkpoint have decided what is gone. Where those records stay nothing in the log shows
it. So a process that replaces segments writes down where the round ends, durably, *before* the
first of them goes. The note is removed when the checkpoint says as much; a crash leaves it there.

Written is not yet done. The note names a witness, a segment that is not what it was once anything
of the round is in place. While the witness is there unchanged, what counted before still counts.

Readers take no lock. They list the log, read this file and only then the checkpoint, as it goes
when that is written. Brokers ignore its name, and remove it with the partition. Their own cleaner
leaves no such file.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec import Struct

from keeplast.errors import CorruptError
from keeplast.format.checkpoint import decode_offsets, encode_lines, offset_line
from keeplast.format.filename import CLEANED_FOR, CLEANER_CHECKPOINT, LOG
from keeplast.format.filename import segment_file as segment_name
from keeplast.log.files import FileSystem, write_durable_like
from keeplast.log.partition_log import PartitionFiles
from keeplast.log.paths import child_path
from keeplast.model.partition import INT64_MAX, TopicPartition

BYTES_MAX = 64 << 20
"""A checkpoint line is some 280 bytes at most; this is room for a quarter of a million."""

PARSED_MAX = 8
"""How many contents stay parsed, of BYTES_MAX together: the files of two data directories."""


class _Content(Struct, frozen=True):
    """A checkpoint, parsed: the offset of each partition, and its line as it is written."""

    offsets: Mapping[TopicPartition, int]
    lines: Mapping[TopicPartition, str]


_EMPTY = _Content({}, {})
_parsed: OrderedDict[bytes, _Content] = OrderedDict()
_parsed_lock = threading.Lock()


def read_checkpoint(files: FileSystem, root: Path, name: str) -> Mapping[TopicPartition, int]:
    """Return the offsets in the file ``name``, empty when there is no such file.

    Raises CorruptError with the path when it is malformed.
    """
    return _read(files, child_path(root, name)).offsets


def update_checkpoint(
    files: FileSystem, root: Path, name: str, changes: dict[TopicPartition, int]
) -> None:
    """Replace the lines of ``changes``, atomically and durably; other lines stay."""
    content = _read(files, root / name)
    new = {tp: offset for tp, offset in changes.items() if content.offsets.get(tp) != offset}
    if new:
        _write(
            files,
            root / name,
            _Content({**content.offsets, **new}, {**content.lines, **_lines_of(new)}),
        )


def drop_from_checkpoint(
    files: FileSystem, root: Path, name: str, partition: TopicPartition
) -> None:
    """Remove the line of ``partition``, atomically and durably; other lines stay."""
    content = _read(files, root / name)
    if partition in content.offsets:
        offsets, lines = dict(content.offsets), dict(content.lines)
        del offsets[partition], lines[partition]
        _write(files, root / name, _Content(offsets, lines))


def _read(files: FileSystem, path: Path) -> _Content:
    if not files.exists(path):
        return _EMPTY
    data = files.read_bytes(path, BYTES_MAX)
    with _parsed_lock:
        content = _parsed.get(data)
        if content is not None:
            _parsed.move_to_end(data)
            return content
    try:
        offsets = decode_offsets(data)
    except CorruptError as error:
        raise error.located(str(path)) from error
    content = _Content(offsets, _lines_of(offsets))
    _keep(data, content)
    return content


def _write(files: FileSystem, path: Path, content: _Content) -> None:
    data = encode_lines(content.lines.values())
    files.write_durable(path, data)
    _keep(data, content)


def _keep(data: bytes, content: _Content) -> None:
    with _parsed_lock:
        _parsed[data] = content
        _parsed.move_to_end(data)
        while len(_parsed) > PARSED_MAX or sum(map(len, _parsed)) > BYTES_MAX:
            _parsed.popitem(last=False)


def _lines_of(offsets: Mapping[TopicPartition, int]) -> dict[TopicPartition, str]:
    return {partition: offset_line(partition, offset) for partition, offset in offsets.items()}


VERSION = 1
CLEANED_FOR_BYTES_MAX = 1 << 16
UNFINISHED = f"{CLEANED_FOR}.tmp"
"""What a crash may leave of a note that was being written: nothing counts by it."""

Witness = tuple[int, int]
"""Base offset and bytes of the ``.log`` of a segment."""


class RoundNote(Struct, frozen=True):
    """A round decides by the records below ``end_offset``, exclusive, what is left of the log.

    None of it counts while ``witness`` is a segment of the log; without one it counts. ``before``
    is what counts else, None where there was no round that the checkpoint leaves out.
    """

    end_offset: int
    witness: Witness | None
    before: int | None


def cleaned_for(listing: PartitionFiles, files: FileSystem) -> int | None:
    """Return below which offset records may have gone for others, as noted; None without a note.

    Never beyond the base of the active segment, which no cleaner touches. CorruptError when the
    note is damaged.
    """
    # The names were listed first: a log without a note then is as its checkpoint says, or a round
    # has begun since.
    note = read_note(listing, files)
    if note is None:
        return None
    end = note.before if _is_there(note.witness, listing) else note.end_offset
    return None if end is None else min(end, listing.active.base_offset)


def said_end(partition: TopicPartition, listing: PartitionFiles, files: FileSystem) -> int | None:
    """Return below which offset records may have gone for others, by the note and the checkpoint.

    None when neither says anything. A checkpoint beyond the base of the active segment, which no
    cleaner touches, is another log's. CorruptError when either is damaged.
    """
    # In this order: the note goes when the checkpoint is written.
    noted = cleaned_for(listing, files)
    line = read_checkpoint(files, listing.path.parent, CLEANER_CHECKPOINT).get(partition)
    if line is None or line > listing.active.base_offset:
        return noted
    return line if noted is None else max(line, noted)


def note_round(
    listing: PartitionFiles,
    files: FileSystem,
    end_offset: int,
    *,
    witness: Witness | None,
    checkpoint: int | None,
    flushes_name: bool = True,
) -> int | None:
    """Write down, durably, that a round which ends at ``end_offset`` is about to replace segments.

    ``flushes_name`` False is for a caller that swaps now. The names that a swap announces are
    flushed before the first of them decides anything (:mod:`keeplast.log.swap`), and the note's
    with them. ``checkpoint`` is the cleaner's line of now, which makes a note of less needless.
    ``witness`` is a segment as listed; None where something of the round is in place already.
    Returns the end that was written, None where no note was needed.
    """
    known = read_note(listing, files)
    if known is None and checkpoint is not None and end_offset <= checkpoint:
        return None
    before = cleaned_for(listing, files)
    noted = max(end_offset, before or 0)
    write_note(listing.path, files, RoundNote(noted, witness, before),
               like=listing.segments[0].base_offset, flushes_name=flushes_name)  # fmt: skip
    return noted


def drop_note(
    directory: Path, files: FileSystem, checkpoint: int | None, *, noted: int | None = None
) -> None:
    """Remove the note when the cleaner's ``checkpoint`` says as much or more; None keeps it.

    ``noted`` is the end in it where the caller has written it; None has it read. Not durably: one
    that comes back says nothing new.
    """
    path = child_path(directory, CLEANED_FOR)
    if checkpoint is None or (noted is None and not files.exists(path)):
        return
    if noted is None:
        noted = _decoded(files.read_bytes(path, CLEANED_FOR_BYTES_MAX), path).end_offset
    if noted <= checkpoint:
        files.unlink(path)


def settle_note(listing: PartitionFiles, files: FileSystem) -> None:
    """Remove a note that counts for nothing any more, as when its round has been put back."""
    names = [UNFINISHED] if UNFINISHED in listing.unknown else []
    if CLEANED_FOR in listing.unknown and cleaned_for(listing, files) is None:
        names.append(CLEANED_FOR)
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            files.unlink(listing.path / name)


def read_note(listing: PartitionFiles, files: FileSystem) -> RoundNote | None:
    """Return the note next to a log, None where there is none; CorruptError when it is damaged."""
    if CLEANED_FOR not in listing.unknown:
        return None
    path = child_path(listing.path, CLEANED_FOR)
    try:
        data = files.read_bytes(path, CLEANED_FOR_BYTES_MAX)
    except FileNotFoundError:
        return None  # the checkpoint has just been written
    return _decoded(data, path)


def write_note(
    directory: Path, files: FileSystem, note: RoundNote, *, like: int, flushes_name: bool = True
) -> None:
    """Replace the note, durably; the ``.log`` at ``like`` has the owner that it gets.

    ``flushes_name`` is as in :func:`~keeplast.log.files.write_durable_like`.
    """
    document = {
        "version": VERSION,
        "end": note.end_offset,
        "witness": note.witness,
        "before": note.before,
    }
    data = json.dumps(document, separators=(",", ":")).encode() + b"\n"
    path, owner = child_path(directory, CLEANED_FOR), child_path(directory, segment_name(like, LOG))
    write_durable_like(files, path, data, owner, flushes_name=flushes_name)


def find_witness(before: Sequence[Witness], after: Sequence[Witness]) -> Witness | None:
    """Return the first segment of ``before`` that is none ``after``, both ascending; else None.

    Segments are replaced in that order, so that it goes with the first that loses anything.
    """
    kept = set(after)
    return next((each for each in before if each not in kept), None)


def _is_there(witness: Witness | None, listing: PartitionFiles) -> bool:
    return witness is not None and any(
        witness == (each.base_offset, each.size_bytes) for each in listing.segments
    )


def _decoded(data: bytes, path: Path) -> RoundNote:
    try:
        document = json.loads(data)
        if document["version"] != VERSION:
            raise ValueError(f"version {document['version']!r}")
        witness, before = document["witness"], document["before"]
        if witness is not None:
            base, size = witness
            witness = (_number(base), _number(size))
        return RoundNote(
            _number(document["end"]), witness, None if before is None else _number(before)
        )
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptError(
            "the note of how far a round has looked is damaged; restore or remove it. Without it "
            "a state as of an earlier offset may lack keys until the log is cleaned again",
            path=str(path), position=0, expected="the JSON that a round writes",
            found=f"{type(error).__name__}: {error}", code="K220",
        ) from error  # fmt: skip


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= INT64_MAX:
        raise TypeError("no number from 0 on")
    return value
