"""A partition of a remote tier as the files of a round: read by ranges, written as streams.

To the engine it is one partition directory, with the sources and an empty active segment above
them. So the same code plans and rewrites a round as on a local disk. A log is read and written
through the plugin's layout. The small files that the engine stages stay in memory until their
output is whole. Then they lie next to it in the remote tier, in the form that brokers read.

The rule: **an output is complete, described and read by its own description, before the engine
checks it**: the check reads what brokers will read. No broker serves it yet.

For one round, a process shares its open segments among all readers. To open a segment is two
requests, and an unwrapped key where it is encrypted. A reader keeps the last decoded chunk, since
the next read mostly begins in it. The second rule: **a reader is of one segment id, and the bytes
under an id never change**, until its objects are removed: then it is forgotten. Nothing of it
leaves the process.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from keeplast.attach.held.outputs import (
    BEGUN,
    OutputFacts,
    OutputMark,
    describe_output,
    filter_name,
    output_id,
    staged_id,
    work_name,
)
from keeplast.attach.rules.sources import Source, parts_of, source_of
from keeplast.cluster.layouts.layout import (
    AuxiliaryFile,
    LogWriter,
    RemoteLayout,
    SegmentReader,
    WrittenLog,
)
from keeplast.errors import (
    ConflictError,
    CorruptError,
    InvalidError,
    InvariantError,
    RefusedError,
    invariant,
)
from keeplast.format import txn_index
from keeplast.format.filename import (
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    Kind,
    SegmentFile,
    parse_segment_file,
    segment_file,
)
from keeplast.format.remote_log_metadata import (
    RemoteLogSegment,
    RemoteLogSegmentId,
    TopicIdPartition,
    encode,
)
from keeplast.log.files import Buffer, FileStat, ReadHandle, WriteHandle, write_at_once
from keeplast.rewrite.task import StagedGroup
from keeplast.tier.objects.filters import decode_head
from keeplast.tier.objects.handles import BytesReadHandle, PartitionObjects, copy_part
from keeplast.tier.objects.round_files import parse_filter_file

READERS_KEPT = 8
"""A reader may keep two chunks; a group is read source by source."""


class SharedReaders:
    """At most READERS_KEPT of them, the oldest goes first; safe for threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readers: dict[RemoteLogSegmentId, SegmentReader] = {}

    def __reduce__(self) -> tuple[type[SharedReaders], tuple[()]]:
        """Travel empty: another process opens what it reads."""
        return SharedReaders, ()

    def open(self, layout: RemoteLayout, segment: RemoteLogSegment) -> SegmentReader:
        """Return the reader of a segment, opened if there is none; errors are the layout's."""
        with self._lock:
            reader = self._readers.get(segment.id)
        if reader is None:
            reader = layout.open(segment)
            with self._lock:
                while len(self._readers) >= READERS_KEPT:
                    del self._readers[next(iter(self._readers))]
                self._readers[segment.id] = reader
        return reader

    def forget(self, name: RemoteLogSegmentId) -> None:
        """Open a segment again from here on."""
        with self._lock:
            self._readers.pop(name, None)


ROOT = Path("/attached")
_AUXILIARY = {
    INDEX: AuxiliaryFile.OFFSET_INDEX,
    TIME_INDEX: AuxiliaryFile.TIME_INDEX,
    SNAPSHOT: AuxiliaryFile.SNAPSHOT,
}


def attached_path(partition: TopicIdPartition) -> Path:
    """Return the directory that a partition's segments look like to a round."""
    return ROOT / f"{partition.topic}-{partition.partition}"


@dataclass(frozen=True, slots=True)
class AttachedRecipe:
    """How a worker opens :class:`AttachedFiles`; ``like`` is what :attr:`AttachedFiles.like` is.

    All that are opened in one process read by the same ``readers``. A round asks for the last
    producer snapshot alone; a reader may be shown all of them.
    """

    layout: RemoteLayout
    sources: tuple[Source, ...]
    mark: OutputMark
    like: RemoteLogSegment | None = None
    readers: SharedReaders = field(default_factory=SharedReaders, compare=False)
    shows_snapshots: bool = False

    def open(self) -> AttachedFiles:
        """Return the files of the round."""
        return AttachedFiles(self)

    def is_on_disk(self, path: Path) -> bool:
        """Return False: workers go to the remote tier themselves."""
        return False


class AttachedFiles(PartitionObjects):
    """The :class:`~keeplast.log.files.FileSystem` of one partition's round.

    It completes outputs, as :class:`~keeplast.rewrite.wave.CompletesOutputs` asks.
    """

    def __init__(self, recipe: AttachedRecipe) -> None:
        """Show its sources: one at least, measured, ascending and without a hole."""
        sources = recipe.sources
        self._layout = recipe.layout
        self._like = recipe.like
        self._sources = {each.start_offset: each for each in sources}
        self._newest = sources[-1].newest
        self._mark = recipe.mark
        self.partition = self._newest.id.partition
        self.path = attached_path(self.partition)
        self.end = self._newest.end_offset + 1
        self._active = segment_file(self.end, LOG)
        self._names = {segment_file(self.end, SNAPSHOT): sources[-1]}
        for each in sources:
            if recipe.shows_snapshots:
                self._names[segment_file(each.end_offset + 1, SNAPSHOT)] = each
            # Without its indexes it is written again though nothing of it has changed.
            kinds: tuple[Kind, ...] = (LOG,) if each.late else (LOG, INDEX, TIME_INDEX)
            for kind in kinds:
                self._names[segment_file(each.start_offset, kind)] = each
        self._readers = recipe.readers
        self._written: dict[str, tuple[WrittenLog, OutputFacts]] = {}
        self._small: dict[str, bytes] = {}
        self._complete: dict[str, RemoteLogSegment] = {}

    # Outputs.

    @property
    def like(self) -> RemoteLogSegment:
        """Return the source that outputs are stored like; it is asked of the layout once.

        An encrypted one, if any is: no output is weaker than what it takes the place of.
        """
        if self._like is None:
            self._like = self._layout.pattern(parts_of(self._sources.values()))
        return self._like

    def end_of(self, bases: Sequence[int]) -> int:
        """Return the last offset, inclusive, of the sources at ``bases``."""
        return self._sources[bases[-1]].end_offset

    def follows(self, one: StagedGroup, other: StagedGroup) -> bool:
        """Say whether no source lies between two outputs: one that filters let stay is in none."""
        return self.end_of(one.sources) + 1 == other.base_offset

    def adopt(self, log_name: str, segment: RemoteLogSegment) -> None:
        """Show a log that a task has staged and described, wherever that ran."""
        self._complete[log_name] = segment

    def complete(self, outputs: Sequence[StagedGroup]) -> None:
        """Complete the staged files of one group, and leave word of it for the publisher.

        RefusedError for outputs whose offsets do not fit one segment.
        """
        if len(outputs) > 1:
            raise RefusedError(
                "the offsets of a segment do not fit the segment that it becomes; a log with "
                f"messages of an old format is not compacted here. partition={self.partition} "
                f"base_offset={outputs[0].base_offset}",
                code="K450",
            )
        for output in outputs:
            if output.files:
                self._complete_output(output)

    def _complete_output(self, output: StagedGroup) -> None:
        names = {each.kind: each.name for each in output.files}
        sources = [self._sources[base] for base in output.sources]
        written, facts = self._written[names[LOG]]
        name = staged_id(self.partition, output)
        segment = describe_output(name, parts_of(sources), facts, self._mark)
        auxiliary = {
            AuxiliaryFile.OFFSET_INDEX: self._small[names[INDEX]],
            AuxiliaryFile.TIME_INDEX: self._small[names[TIME_INDEX]],
            **self._carried(sources, facts),
        }
        custom = self._layout.complete(segment, written, auxiliary, self._newest)
        segment = replace(segment, custom_metadata=custom)
        self._check(segment, auxiliary)
        self._complete[names[LOG]] = segment
        for kind in (INDEX, TIME_INDEX):
            del self._small[names[kind]]
        if not self._layout.replace_own(work_name(name), encode(segment), BEGUN):
            raise ConflictError(
                f"what a round began was removed meanwhile. object={work_name(name)}", code="K429"
            )

    def _check(self, segment: RemoteLogSegment, auxiliary: Mapping[AuxiliaryFile, bytes]) -> None:
        """Read the files next to a log; the engine's check reads the log itself."""
        reader = self._reader(segment)
        for kind in AuxiliaryFile:
            if reader.read_auxiliary(kind) != auxiliary.get(kind):
                raise CorruptError(
                    "the remote tier has not kept what was written", path=str(segment.id),
                    expected=f"{kind} as it was written", found="something else", code="K437",
                )  # fmt: skip

    def _carried(self, sources: Sequence[Source], facts: OutputFacts) -> dict[AuxiliaryFile, bytes]:
        """Return what belongs to the end of the sources, and aborted transactions that it has.

        An entry stays exactly as long as its marker does (I-11): without the marker a reader would
        take what the producer commits later for aborted. Where a part is served no more, the next
        one has marker and entry.
        """
        newest = sources[-1].newest
        last = self._reader(newest)
        found: dict[AuxiliaryFile, bytes] = {}
        for kind in (AuxiliaryFile.SNAPSHOT, AuxiliaryFile.LEADER_EPOCHS):
            data = last.read_auxiliary(kind)
            if data is None:
                raise CorruptError(
                    "a segment of the remote tier lacks a file", path=str(newest.id),
                    expected=kind.value, found="none", code="K412",
                )  # fmt: skip
            found[kind] = data
        entries = [
            entry
            for source in sources
            for number, part in enumerate(source.parts)
            if not part.is_txn_index_empty
            for entry in txn_index.decode(
                self._reader(part).read_auxiliary(AuxiliaryFile.TXN_INDEX) or b""
            )
            if entry.last_offset <= source.last_of(number) and facts.has_marker(entry.last_offset)
        ]
        if entries:
            found[AuxiliaryFile.TXN_INDEX] = txn_index.encode(entries)
        return found

    # Where bytes are.

    def _reader(self, segment: RemoteLogSegment) -> SegmentReader:
        return self._readers.open(self._layout, segment)

    def _source(self, path: Path) -> Source | None:
        """Return the source that a name is a file of, or the complete output as one."""
        if path.parent != self.path:
            return None
        found = self._names.get(path.name)
        if found is not None:
            return found
        parsed = parse_segment_file(path.name)
        if parsed is None or parsed.attempt is None:
            return None
        log = SegmentFile(parsed.base_offset, LOG, parsed.stage, parsed.attempt).name
        output = self._complete.get(log)
        return None if output is None else source_of(output)

    def _read_small(self, path: Path) -> bytes:
        source, parsed = self._source(path), parse_segment_file(path.name)
        if source is None or parsed is None or parsed.kind not in _AUXILIARY:
            if path.name in self._small:
                return self._small[path.name]
            raise FileNotFoundError(2, "No such file or directory", str(path))
        if len(source.parts) > 1 and parsed.kind != SNAPSHOT:
            return b""  # No index spans the parts; without entries a log is read from its start.
        return self._reader(source.newest).read_auxiliary(_AUXILIARY[parsed.kind]) or b""

    def _filtered(self, path: Path) -> RemoteLogSegmentId | None:
        """Return whose filter a name is, None for no filter, and of a source that may not stay."""
        parsed = parse_filter_file(path.name) if path.parent == self.path else None
        if parsed is None:
            return None
        base, attempt = parsed
        if attempt is not None:
            return output_id(self.partition, attempt, base)
        source = self._sources.get(base)
        return None if source is None or source.is_overlaid else source.newest.id

    def _write_filter(self, path: Path, data: Buffer) -> None:
        """Keep a filter next to the segments; it only saves work, so that nothing waits for it.

        Not of a log without a key: neighbours without a record become one, so they are all read.
        """
        name, content = self._filtered(path), bytes(data)
        if name is None or not decode_head(content, str(path)).keys:
            return
        # What is there under an id is about the same bytes; only a damaged one is made again.
        if not self._layout.put_new(filter_name(name), content):
            self._layout.delete_own(filter_name(name))
            self._layout.put_new(filter_name(name), content)

    def _staged(self, path: Path) -> SegmentFile:
        parsed = parse_segment_file(path.name)
        if path.parent != self.path or parsed is None or parsed.attempt is None:
            raise InvariantError(f"a round writes staged files. path={path}", code="K901")
        return parsed

    # The port.

    def open_read(self, path: Path) -> ReadHandle:
        """Open a segment's file; an empty one for the active segment."""
        if path == self.path / self._active:
            return BytesReadHandle(b"")
        filtered = self._filtered(path)
        if filtered is not None:
            found = self._layout.read_own(filter_name(filtered))
            if found is None:
                raise FileNotFoundError(2, "No such file or directory", str(path))
            return BytesReadHandle(found)
        source, parsed = self._source(path), parse_segment_file(path.name)
        if source is not None and parsed is not None and parsed.kind == LOG:
            return _LogReadHandle(source, self._reader)
        return BytesReadHandle(self._read_small(path))

    def open_write(self, path: Path, *, append: bool = False) -> WriteHandle:
        """Start a staged file; it counts once it is durable."""
        invariant(not append, f"segments are not appended to. path={path}")
        parsed = self._staged(path)
        if parsed.kind != LOG:
            return _SmallWriteHandle(self._small, path.name)
        name = output_id(self.partition, parsed.attempt or "", parsed.base_offset)
        # First: a segment under an id without an announcement is ours if there is word of it.
        if not self._layout.put_new(work_name(name), BEGUN):
            raise ConflictError(
                f"an attempt has done this before. object={work_name(name)}", code="K451"
            )
        writer = self._layout.create_log(name, parsed.base_offset, self.like)
        given_up = partial(self._layout.delete_own, work_name(name))
        return _LogWriteHandle(writer, self._written, path.name, given_up)

    def listdir(self, path: Path) -> list[str]:
        """Return the files of the partition, or nothing."""
        if path == self.path:
            return sorted([*self._names, *self._written, *self._small, self._active])
        return []

    def exists(self, path: Path) -> bool:
        """Say whether there is such a file."""
        is_known = path.parent == self.path and (
            path.name in (self._active, *self._written, *self._small) or path.name in self._names
        )
        return is_known or self.is_directory(path)

    def stat(self, path: Path) -> FileStat:
        """Return size and time; of a log as its announcement has them."""
        if path == self.path / self._active:
            return FileStat(0, 0)
        source, parsed = self._source(path), parse_segment_file(path.name)
        if source is not None and parsed is not None and parsed.kind == LOG:
            return FileStat(source.size_bytes, source.newest.event_timestamp_ms * 1_000_000)
        return FileStat(len(self._read_small(path)), 0)

    def read_bytes(self, path: Path, limit: int) -> bytes:
        """Return a small file whole."""
        data = self._read_small(path)
        if len(data) > limit:
            raise InvalidError(
                f"file is larger than the limit. path={path} size_bytes={len(data)} limit={limit}",
                code="K158",
            )
        return data

    def unlink(self, path: Path) -> None:
        """Forget a staged file; with its log go all objects of the output."""
        parsed = self._staged(path)
        self._small.pop(path.name, None)
        if parsed.kind != LOG:
            return
        name = output_id(self.partition, parsed.attempt or "", parsed.base_offset)
        remove_output(self._layout, name, parsed.base_offset, self.like)
        self._written.pop(path.name, None)
        self._complete.pop(path.name, None)
        self._readers.forget(name)

    def write_durable(self, path: Path, data: Buffer) -> None:
        """Write a staged file, or the filter of a segment, at once."""
        if parse_filter_file(path.name) is not None:
            self._write_filter(path, data)
        else:
            write_at_once(self.open_write(path), data)


def remove_output(
    layout: RemoteLayout, name: RemoteLogSegmentId, start_offset: int, like: RemoteLogSegment
) -> None:
    """Remove an output that is not announced: its objects, then the word of it."""
    layout.delete(replace(like, id=name, start_offset=start_offset, custom_metadata=None, tags=()))
    layout.delete_own(filter_name(name))
    layout.delete_own(work_name(name))


class _LogReadHandle:
    """A log of the remote tier, read by position: its parts, one after the other."""

    def __init__(
        self, source: Source, reader_of: Callable[[RemoteLogSegment], SegmentReader]
    ) -> None:
        self._source = source
        self._reader_of = reader_of
        self._last: tuple[RemoteLogSegmentId, SegmentReader] | None = None
        self.size_bytes: Final = source.size_bytes

    def pread_into(self, buffer: memoryview, position: int) -> int:
        filled = start = 0
        for part, size in zip(self._source.parts, self._source.sizes, strict=True):
            at = position + filled - start
            count = min(len(buffer) - filled, size - at)
            if count > 0 and at >= 0:
                self._fill(part, buffer[filled : filled + count], at)
                filled += count
            start += size
        return filled

    def _fill(self, part: RemoteLogSegment, buffer: memoryview, position: int) -> None:
        # Others may have had so many open meanwhile that this one was dropped.
        last = self._last
        if last is None or last[0] != part.id:
            last = self._last = part.id, self._reader_of(part)
        count = last[1].read_into(position, buffer)
        if count != len(buffer):
            raise CorruptError(
                "a remote log is shorter than it was announced", path=str(part.id),
                position=position, expected=len(buffer), found=count, code="K437",
            )  # fmt: skip

    def close(self) -> None:
        """Do nothing: nothing is held open."""


class _SmallWriteHandle:
    """A small file that is kept in memory when it is durable."""

    def __init__(self, kept: dict[str, bytes], name: str) -> None:
        self._kept = kept
        self._name = name
        self._data = bytearray()

    def write(self, data: Buffer) -> None:
        self._data += data

    def copy_from(self, source: ReadHandle, position: int, length: int) -> None:
        copy_part(self, source, position, length, self._name)

    def fsync(self) -> None:
        self._kept[self._name] = bytes(self._data)

    def close(self) -> None:
        """Do nothing: without :meth:`fsync` there is no file."""


class _LogWriteHandle:
    """A log while it is written; one that is closed before :meth:`fsync` is given up."""

    def __init__(
        self,
        writer: LogWriter,
        written: dict[str, tuple[WrittenLog, OutputFacts]],
        name: str,
        given_up: Callable[[], None],
    ) -> None:
        self._writer = writer
        self._given_up = given_up
        self._written = written
        self._name = name
        self._facts = OutputFacts()
        self._is_open = True

    def write(self, data: Buffer) -> None:
        self._writer.write(data)
        self._facts.add(data)

    def copy_from(self, source: ReadHandle, position: int, length: int) -> None:
        copy_part(self, source, position, length, self._name)

    def fsync(self) -> None:
        if self._is_open:
            self._facts.finish()
            self._is_open = False
            self._written[self._name] = self._writer.close(), self._facts

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._writer.abort()
            self._given_up()
