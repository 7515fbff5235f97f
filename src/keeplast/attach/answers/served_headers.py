"""What the batch headers of a partition in a remote tier tell: codecs, horizons, stages.

Every segment that brokers serve is read once, whole, also where another one lies over its end;
nothing is changed, and one that goes meanwhile ends it with an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from keeplast.attach.held.outputs import OutputMark
from keeplast.attach.rounds.attached_files import AttachedRecipe
from keeplast.attach.rounds.attached_place import NOBODY
from keeplast.attach.rules.sources import source_of
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.metadata_cache import PartitionCache
from keeplast.errors import ConflictError, InvalidError
from keeplast.inspect.header_scan import LogHeaders, scan_headers


def scan_served_headers(
    layout: RemoteLayout, cache: PartitionCache, now_ms: int, progressed: Callable[[int], None]
) -> LogHeaders:
    """Read the headers of what is served, as :func:`~keeplast.inspect.header_scan.scan_headers`.

    CorruptError for a log that cannot be followed, ConflictError for a segment that went meanwhile,
    InvalidError where nothing is served.
    """
    served = {each.segment.start_offset: each.segment for each in cache.served()}
    if not served:
        raise InvalidError("brokers serve nothing of it from the remote tier; look again")
    sources = tuple(source_of(served[start]) for start in sorted(served))
    files = AttachedRecipe(layout, sources, OutputMark(NOBODY, 0)).open()
    try:
        found = scan_headers(files.path, files, now_ms, progressed)
    except FileNotFoundError as error:
        raise ConflictError(
            "a segment was replaced and collected, or expired, while it was read; ask again. "
            f"path={error.filename or error}"
        ) from error
    # Behind them stands an empty segment that there is not.
    return replace(found, segments={b: s for b, s in found.segments.items() if b in served})
