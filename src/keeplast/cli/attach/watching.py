"""What a console is shown of a live cluster: its tiered topics, looked at again and again.

Read are the metadata topic, as brokers do, and the decision log where one is named; no group, no
claim. Objects are read only when a key is looked for, or somebody asks for batch headers.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from keeplast.cli.attach.options import (
    ClusterOptions,
    DecisionOptions,
    TierOptions,
    WantedOptions,
)
from keeplast.clock import Clock
from keeplast.errors import InvalidError, RefusedError
from keeplast.inspect.explain import AskedKey
from keeplast.inspect.header_scan import LogHeaders
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.model.redaction import shown_url
from keeplast.service.console.searches import MEMORY_BYTES, HeaderScanner, KeyFinder
from keeplast.service.console.view import Looked, Watcher
from keeplast.service.explained import KeyAnswer
from keeplast.service.receipt_shelf import ReceiptShelf

if TYPE_CHECKING:
    from keeplast.cluster.layouts.paced import RequestPace
    from keeplast.tier.metadata.decisions import DecisionLog


_NOTHING_SAID = WantedOptions()


def attached_watcher(
    cluster: ClusterOptions,
    store: str | None,
    clock: Clock,
    *,
    wanted: WantedOptions = _NOTHING_SAID,
    partitions: tuple[int, ...] = (),
    receipt: Path | None = None,
    endures: bool = False,
) -> Watcher:
    """Return what looks at the chosen topics of a cluster; each look opens the decision log.

    ``wanted`` says whom tombstones wait for. ``partitions`` are the numbers that are shown, all
    without any. ``store`` None: nothing is known of who compacts. ``receipt`` is the file that a
    loop appends its receipts to, and what looks beside it ``endures``. InvalidError for a decision
    log that is not there.
    """
    from keeplast.cluster.facts import METADATA_TOPIC
    from keeplast.cluster.group_offsets import BrokerGroups
    from keeplast.cluster.metadata_log import fold_metadata, partitions_of
    from keeplast.service.attached_report import attached_report

    _require_there(store)
    client, files = cluster.connect(), LocalFiles()
    groups = BrokerGroups(client)

    def look() -> Looked:
        facts = client.read_facts(cluster.topics)
        if facts.metadata_topic is None:
            raise RefusedError(
                f"nothing was ever copied to a remote tier here: there is no {METADATA_TOPIC}. "
                f"bootstrap_server={cluster.bootstrap_server}"
            )
        # Ends last: what was announced by then lies below the log's end.
        chosen = partitions_of(facts.topics, facts.metadata_topic)
        folded = fold_metadata(client, facts.metadata_topic, chosen)
        folded.require_sound()
        ranges = {topic.name: client.read_ranges(topic) for topic in facts.topics}
        settings = wanted.settings_of(facts.topics)
        with _opened(store) as log:
            found = attached_report(
                facts, ranges, folded, log, None, settings, groups, clock,
                cluster.bootstrap_server, numbers=partitions,
            )  # fmt: skip
        return Looked(attached=found, settings=settings, now_ms=clock.now_ms())

    place = f"{cluster.bootstrap_server}"
    if store is not None:
        place += f", decided in {shown_url(store)}"
    return Watcher(place, look, clock, files, ReceiptShelf(files, receipt), endures=endures)


def attached_finder(
    cluster: ClusterOptions,
    store: str | None,
    tier: TierOptions,
    wanted: WantedOptions,
    clock: Clock,
    pace: RequestPace,
    *,
    partitions: tuple[int, ...] = (),
    grace_ms: int | None = None,
) -> KeyFinder:
    """Return what finds keys in the chosen topics, as ``explain`` does.

    Each search reads what is new of the metadata topic, and the topic's objects, the latter at
    ``pace``, which is everybody's in the process. InvalidError for a storage or a decision log that
    cannot be used.
    """
    from keeplast.attach.held.kept_folds import KeptFolds
    from keeplast.attach.upkeep.collection import GRACE_MS_DEFAULT
    from keeplast.cluster.fold_checkpoint import FoldCheckpoint
    from keeplast.cluster.layouts.paced import PacedLayout
    from keeplast.cluster.metadata_log import fold_metadata, partitions_of
    from keeplast.service.cluster_answer import answer_from_cluster

    layout = tier.open_layout()
    _require_there(store)
    client = cluster.connect()

    def find(
        topic: str,
        partition: int | None,
        asked: AskedKey,
        now_ms: int,
        *,
        planned: Callable[[int], None],
        progressed: Callable[[int], None],
    ) -> KeyAnswer:
        if cluster.topics and topic not in cluster.topics:
            raise InvalidError(f"this topic is not shown here. topic={topic}")
        facts = client.read_facts([topic])
        if facts.metadata_topic is None:
            raise RefusedError("nothing was ever copied to a remote tier here")
        chosen = [
            (each, number)
            for each in facts.topics
            for number in range(each.partition_count)
            if partition in (None, number) and (not partitions or number in partitions)
        ]
        if not chosen:
            raise InvalidError(f"no such partition is shown here. topic={topic}")
        with _opened(store) as log:

            def kept(number: int) -> FoldCheckpoint | None:
                return None if log is None else KeptFolds(log.folds).find(facts.cluster_id, number)

            folded = fold_metadata(
                client, facts.metadata_topic, partitions_of(facts.topics, facts.metadata_topic),
                lambda _: progressed(0), kept,
            )  # fmt: skip
            folded.require_sound()
            # A wait ends as the search does: with its budget, or with who asked.
            paced = PacedLayout(layout, pace, lambda: progressed(0))
            return answer_from_cluster(
                client, facts, folded.cache, log, paced, wanted.settings_of(facts.topics), chosen,
                clock, asked, grace_ms=GRACE_MS_DEFAULT if grace_ms is None else grace_ms,
                memory_bytes=MEMORY_BYTES, planned=planned, progressed=progressed,
            )  # fmt: skip

    return find


def attached_scanner(
    cluster: ClusterOptions, tier: TierOptions, pace: RequestPace, *,
    partitions: tuple[int, ...] = (),
) -> HeaderScanner:  # fmt: skip
    """Return what reads the batch headers of the chosen partitions, at ``pace``.

    Each time folds the metadata topic from its beginning; errors as of :func:`attached_finder`.
    """
    from keeplast.attach.answers.served_headers import scan_served_headers
    from keeplast.cluster.layouts.paced import PacedLayout
    from keeplast.cluster.metadata_cache import PartitionCache
    from keeplast.cluster.metadata_log import fold_metadata, partitions_of
    from keeplast.cluster.status import name_of

    layout = tier.open_layout()
    client = cluster.connect()

    def scan(
        partition: TopicPartition, now_ms: int, *, progressed: Callable[[int], None]
    ) -> LogHeaders:
        is_shown = not cluster.topics or partition.topic in cluster.topics
        if not is_shown or (partitions and partition.partition not in partitions):
            raise InvalidError(f"this partition is not shown here. partition={partition}")
        facts = client.read_facts([partition.topic])
        if facts.metadata_topic is None:
            raise RefusedError("nothing was ever copied to a remote tier here")
        folded = fold_metadata(
            client, facts.metadata_topic, partitions_of(facts.topics, facts.metadata_topic),
            lambda _: progressed(0),
        )  # fmt: skip
        folded.require_sound()
        name = name_of(facts.topics[0], partition.partition)
        cache = folded.cache.partitions.get(name, PartitionCache())
        paced = PacedLayout(layout, pace, lambda: progressed(0))
        return scan_served_headers(paced, cache, now_ms, progressed)

    return scan


def _require_there(store: str | None) -> None:
    if store is None:
        return
    from keeplast.cli.frame.packages import check_packages

    check_packages()
    from keeplast.tier.metadata.database import is_missing

    if is_missing(store):
        raise InvalidError(
            "there is no such decision log; correct --store, or leave it out to see what brokers "
            f"serve alone. store={shown_url(store)}"
        )


@contextlib.contextmanager
def _opened(store: str | None) -> Iterator[DecisionLog | None]:
    if store is None:
        yield None
        return
    with DecisionOptions(store=store).open_log(only_looks=True) as log:
        yield log
