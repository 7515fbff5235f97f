"""``keeplast.stored_state``: the state of a partition of a store, of now or as of a point."""

from __future__ import annotations

from keeplast.api.open_log import OpenLog
from keeplast.format.record import Record
from keeplast.model.partition import TopicPartition
from keeplast.model.topic_config import TopicConfig
from keeplast.store.tiered_store import TieredStore
from keeplast.tier.metadata.stored_logs import shown_log
from keeplast.tier.objects.log_directory import LogDirectoryRecipe
from keeplast.tier.objects.round_files import ROOT, round_path


def stored_state(
    store: TieredStore,
    partition: TopicPartition,
    topic: TopicConfig | None = None,
    *,
    end_offset: int | None = None,
    as_of_ms: int | None = None,
) -> dict[bytes, Record]:
    """Return the final record of every key that is not deleted, in offset order.

    Of what lies in the store: a local log may be longer. ``topic`` says how records rank, by
    default the partition's settings. ``end_offset`` and ``as_of_ms``, and what is refused, as for
    :meth:`~keeplast.api.open_log.OpenLog.state`. The partition is looked at once: rounds may go on
    meanwhile. InvalidError for one that is not there, ConflictError when an object of what was
    looked at was collected before it was read.
    """
    parts = store.parts()
    state = parts.metadata.load(partition)
    files = LogDirectoryRecipe(ROOT, (shown_log(state, parts.objects),)).open()
    log = OpenLog(round_path(partition), files=files)
    chosen = store.topic_for(state) if topic is None else topic
    return log.state(chosen, end_offset=end_offset, as_of_ms=as_of_ms)
