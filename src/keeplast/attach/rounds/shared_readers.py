"""The segments of a remote tier that one process has open for one round, whoever reads them there.

To open a segment is two requests, and an unwrapped key where it is encrypted; a reader keeps the
chunk that it has decoded last, in which the next one mostly begins. The rule: **a reader is of one
segment id, and what lies under an id never changes**, until its objects are removed: then it is
forgotten. Nothing of it leaves the process.
"""

from __future__ import annotations

import threading

from keeplast.cluster.layouts.layout import RemoteLayout, SegmentReader
from keeplast.format.remote_log_metadata import RemoteLogSegment, RemoteLogSegmentId

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
        """Open a segment anew from here on."""
        with self._lock:
            self._readers.pop(name, None)
