"""What the batch headers of a partition in object storage tell: codecs, horizons, stages.

Every live object is read once, by ranges as large as a window; nothing is changed, and a round that
replaces what is read meanwhile ends it with an error.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from keeplast.errors import CorruptError
from keeplast.inspect.header_scan import LogHeaders, scan_headers
from keeplast.tier.objects.object_store import ObjectStore
from keeplast.tier.objects.round_files import RoundFiles
from keeplast.tier.state.partition_state import PartitionState


def scan_stored_headers(
    objects: ObjectStore, state: PartitionState, now_ms: int, progressed: Callable[[int], None]
) -> LogHeaders:
    """Read the headers of what is live, as :func:`~keeplast.inspect.header_scan.scan_headers` does.

    Raises CorruptError, which names the object, and OSError for one that is gone.
    """
    live = tuple(state.segments[route.segment_id] for route in state.routes)
    files = RoundFiles(objects, state.partition, state.topic_id, live)
    try:
        found = scan_headers(files.path, files, now_ms, progressed)
    except CorruptError as error:
        raise files.named(error) from error
    # Behind them stands an empty segment that there is not.
    bases = {each.base_offset for each in live}
    return replace(found, segments={b: s for b, s in found.segments.items() if b in bases})
