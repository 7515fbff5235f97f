"""The indexes of one log while it is looked at, of any number of segments in bounded memory.

Nothing here is held against a segment's batches but by :meth:`LoadedIndexes.find_start`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import replace

from keeplast.log.files import FileSystem, reading
from keeplast.log.partition_log import (
    PartitionFiles,
    SegmentIndexes,
    load_indexes,
    rebuild_indexes,
)
from keeplast.log.windows import WindowBuffers, find_start

LOADED_BYTES_MAX = 64 << 20
"""Indexes of one log that are kept: those of 8 GiB of segments, at a broker's interval."""


class LoadedIndexes(Mapping[int, SegmentIndexes]):
    """The indexes of a log's closed segments, each read when it is asked for.

    Those asked for last are kept, of LOADED_BYTES_MAX together and one at least: all those of a log
    of 1 TiB are 8 GiB.
    """

    def __init__(
        self, listing: PartitionFiles, files: FileSystem, interval: int, buffers: WindowBuffers
    ) -> None:
        self._segments = {segment.base_offset: segment for segment in listing.segments[:-1]}
        self._files = files
        self._interval = interval
        self._buffers = buffers
        self._loaded: OrderedDict[int, SegmentIndexes] = OrderedDict()
        self._loaded_bytes = 0
        self._derived: dict[int, SegmentIndexes] = {}
        self._rebuilt: set[int] = set()

    @property
    def loaded_bytes(self) -> int:
        """Return what is kept of what was read."""
        return self._loaded_bytes

    def __getitem__(self, base: int) -> SegmentIndexes:
        """Return the indexes of the segment at ``base``."""
        if base in self._derived:
            return self._derived[base]
        found = self._loaded.get(base)
        if found is not None:
            self._loaded.move_to_end(base)
            return found
        segment = self._segments[base]
        found = load_indexes(segment, self._files, self._interval, self._buffers)
        if found.rebuilt:
            self._rebuilt.add(base)
        self._loaded[base] = found
        self._loaded_bytes += found.size_bytes
        while self._loaded_bytes > LOADED_BYTES_MAX and len(self._loaded) > 1:
            _, least = self._loaded.popitem(last=False)
            self._loaded_bytes -= least.size_bytes
        return found

    def find_start(self, base: int, offset: int) -> int:
        """Return from which position the segment at ``base`` has all of ``offset`` and behind it.

        Its file is held against the segment: one that is older could leave batches out.
        """
        position = self[base].position_before(offset - base)
        if not position:
            return 0
        segment = self._segments[base]
        with reading(self._files, segment.log_path) as handle:
            return find_start(
                handle, segment.log_path, self._buffers,
                position=position, offset=offset, end=segment.size_bytes,
            )  # fmt: skip

    def derive(self, base: int) -> None:
        """Take the indexes of a segment that is still appended to from its batches.

        Its files are good as far as they reach, which is not to its end.
        """
        found = rebuild_indexes(self._segments[base], self._files, self._interval, self._buffers)
        self._derived[base] = replace(found, rebuilt=False)

    def __iter__(self) -> Iterator[int]:
        return iter(self._segments)

    def __len__(self) -> int:
        return len(self._segments)

    @property
    def rebuilt(self) -> tuple[int, ...]:
        """Return the segments, of those asked for, whose files could not be used, ascending."""
        return tuple(sorted(self._rebuilt))
