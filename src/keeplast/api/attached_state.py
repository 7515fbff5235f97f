"""What programs ask a live cluster: a partition's state, and what groups have committed.

A state is read from the remote tier. Committed offsets are for tombstones that wait for groups.
"""

from __future__ import annotations

from collections.abc import Mapping

from keeplast.api.open_log import KeyState, OpenLog
from keeplast.attach.answers.shown_logs import decision_log_at, find_shown_topics, naming_segments
from keeplast.attach.rounds.attached_files import ROOT
from keeplast.clock import SystemClock
from keeplast.cluster.client import ClusterClient
from keeplast.cluster.group_offsets import BrokerGroups
from keeplast.cluster.layouts.open import open_layout
from keeplast.errors import InvalidError
from keeplast.model.partition import TopicPartition
from keeplast.model.text import shown_url
from keeplast.model.topic_config import TopicConfig
from keeplast.read.log_view import load_reader_checkpoints, look_at_log
from keeplast.read.points import GroupPoint, first_offset_from, require_here, require_later


def attached_state(
    bootstrap_servers: str,
    partition: TopicPartition,
    topic: TopicConfig | None = None,
    *,
    storage: str,
    storage_options: Mapping[str, str] | None = None,
    store: str | None = None,
    settings: Mapping[str, str] | None = None,
    end_offset: int | None = None,
    as_of_ms: int | None = None,
    end_group: str | None = None,
) -> KeyState:
    """Return the final record of every key that is not deleted, in offset order.

    Of what brokers have copied to the remote tier: what they alone have is not in it. ``storage``
    is PLUGIN:PLACE, ``store`` the URL of the decision log, which says how far was compacted.
    Without it, a topic that was compacted has only its latest state. ``topic`` says how records
    rank, by default by offset. ``settings`` are the client's own (librdkafka's). ``end_offset``,
    exclusive, ``as_of_ms`` and ``end_group``, which brokers answer, and what is refused, are as for
    :meth:`~keeplast.api.open_log.OpenLog.state`. RefusedError also for a point above what was
    copied, and for a topic that is not tiered. UnavailableError when no broker answers.
    """
    layout = open_layout(storage, storage_options)
    clock, path = SystemClock(), ROOT / str(partition)
    with decision_log_at(store, clock) as log:
        client = ClusterClient(bootstrap_servers, settings)
        facts = client.read_facts((partition.topic,))
        where = f"bootstrap_servers={shown_url(bootstrap_servers)}"
        recipe = find_shown_topics(
            client, facts, log, layout, lambda each: each == partition, where
        )
    if not recipe.logs:
        raise InvalidError(
            f"no such partition in the cluster; correct its name. partition={partition} {where}",
            code="K115",
        )
    with naming_segments(recipe):
        files, behind = recipe.open(), recipe.behind(partition)
        view = look_at_log(partition, path, load_reader_checkpoints(files, ROOT), files, clock)
        if end_group is not None:
            if end_offset is not None:
                raise InvalidError(
                    "one point at a time; leave end_offset or end_group out. "
                    f"end_offset={end_offset} "
                    f"end_group={end_group!r}",
                    code="K101",
                )
            groups = BrokerGroups(client)
            point = GroupPoint(ROOT, end_group, files, clock, "end_group", groups, where)
            end_offset = point.offset(partition, path, view.log_end)
        if end_offset is not None:
            require_here(view, behind, "end_offset", end_offset)
        if as_of_ms is not None:
            later = first_offset_from(view, as_of_ms + 1, files, clock)
            require_later(view, behind, "as_of_ms", as_of_ms, later)
        found = OpenLog(path, files=files)
        return found.state(topic or TopicConfig(), end_offset=end_offset, as_of_ms=as_of_ms)


def ask_brokers(bootstrap_servers: str, settings: Mapping[str, str] | None = None) -> BrokerGroups:
    """Return what reads for rounds what groups have committed; it connects when it is first asked.

    ``settings`` are the client's own (librdkafka's), such as ``security.protocol``. What brokers do
    not answer counts as not committed, and no call fails for it. InvalidError when the client is
    not installed or cannot use a setting.
    """
    return BrokerGroups(ClusterClient(bootstrap_servers, settings))
