"""Where in a remote log an offset begins that another segment serves: logs are read up to there.

The rule: **a log is cut between two batches or not at all**. Segments begin with a batch on every
broker, and a round keeps the bounds of batches; where they do not fit, nothing is concluded.
"""

from __future__ import annotations

from dataclasses import replace

from keeplast.attach.rules.sources import Source, Sources
from keeplast.cleaner.reasons import SourcesEnd, SourcesLimit
from keeplast.cluster.layouts.layout import AuxiliaryFile, RemoteLayout
from keeplast.format import offset_index
from keeplast.format.batch import HEADER_BYTES, decode_header
from keeplast.format.remote_log_metadata import RemoteLogSegment


def measure_sources(layout: RemoteLayout, found: Sources) -> Sources:
    """Return ``found`` with the bytes that are served of each part; it ends where none fit."""
    measured: list[Source] = []
    for source in found.segments:
        sizes = [
            _bytes_before(layout, part, source.last_of(number) + 1)
            for number, part in enumerate(source.parts)
        ]
        if None in sizes:
            limit = SourcesLimit(source.start_offset, SourcesEnd.SHADOWED)
            return replace(found, segments=tuple(measured), end=source.start_offset, limit=limit)
        measured.append(replace(source, sizes=tuple(each or 0 for each in sizes)))
    return replace(found, segments=tuple(measured))


def _bytes_before(layout: RemoteLayout, segment: RemoteLogSegment, offset: int) -> int | None:
    """Return where in a segment's log the first batch from ``offset`` on begins.

    None when a batch lies on both sides. CorruptError for a log that cannot be followed.
    """
    if offset > segment.end_offset:
        return segment.size_bytes
    reader = layout.open(segment)
    data = reader.read_auxiliary(AuxiliaryFile.OFFSET_INDEX) or b""
    # An entry has the last offset of the batch at its position.
    below = [
        int(position)
        for relative, position in offset_index.decode(data)
        if segment.start_offset + int(relative) < offset
    ]
    at = below[-1] if below else 0
    while at < segment.size_bytes:
        header = decode_header(bytes(reader.read_log(at, at + HEADER_BYTES)), 0)
        if header.base_offset >= offset:
            break
        if header.last_offset >= offset:
            return None
        at += header.size_bytes
    return at
