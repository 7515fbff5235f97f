"""What a live cluster gives to a loop and to a console: its tiered topics.

A console reads the metadata topic, as brokers do, and the decision log where one is named; no
group, no claim. Objects are read only for a search of a key, or when a visitor asks for headers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from keeplast.attach.held.metadata_view import KeptFolds
from keeplast.attach.held.outputs import OutputMark
from keeplast.attach.rounds.attached_files import AttachedRecipe
from keeplast.attach.rounds.attached_place import UNANNOUNCED
from keeplast.attach.rules.sources import source_of
from keeplast.clock import SystemClock
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.layouts.paced import PacedLayout, PaceLimits, pace_of
from keeplast.cluster.live_cluster import METADATA_TOPIC, ClusterFacts, TopicFacts
from keeplast.cluster.metadata_cache import PartitionCache, name_of
from keeplast.cluster.metadata_log import (
    FoldCheckpoint,
    FoldedMetadata,
    fold_metadata,
    partitions_of,
)
from keeplast.config.layers import PartitionChoice
from keeplast.config.precedence import Settings
from keeplast.errors import ConflictError, InvalidError, RefusedError
from keeplast.inspect.explain import AskedKey
from keeplast.inspect.stages import LogHeaders, scan_headers
from keeplast.log.files import LocalFiles
from keeplast.model.partition import TopicPartition
from keeplast.rewrite.task import Runner
from keeplast.run.events import Events
from keeplast.service.attached_report import cluster_status
from keeplast.service.attached_sight import AttachedSettings
from keeplast.service.attached_work import AttachedWork
from keeplast.service.cluster_answer import answer_from_cluster
from keeplast.service.console.searches import MEMORY_BYTES, HeaderScanner, KeyFinder
from keeplast.service.console.view import Looked, Watcher
from keeplast.service.explained import KeyAnswer
from keeplast.service.live import TierNarrator
from keeplast.service.place_loop import OpenLoop, PlaceView, ViewTerms

if TYPE_CHECKING:
    from keeplast.cluster.client import ClusterClient
    from keeplast.tier.metadata.decisions import DecisionLog


class LookedCluster(Struct, frozen=True, kw_only=True):
    """The chosen topics of a cluster, to look at them; each that reads has a client of its own.

    ``where`` is the address as errors name it, ``name`` as pages do. ``decided`` opens the decision
    log, None where none was named. ``wanted`` says what topics are meant to be. ``layout`` None: no
    segment can be read. ``pace`` is that of the whole process, as it is at that moment.
    """

    connect: Callable[[], ClusterClient]
    where: str
    name: str
    scope: PartitionChoice
    wanted: Callable[[Sequence[TopicFacts]], Settings]
    decided: Callable[[], AbstractContextManager[DecisionLog | None]]
    layout: RemoteLayout | None
    pace: Callable[[], PaceLimits]
    grace_ms: int

    def view(self, terms: ViewTerms) -> PlaceView:
        """Return what looks at the topics; each look opens the decision log."""
        files, client, layout = LocalFiles(), self.connect(), self.layout
        return PlaceView(
            watcher=Watcher(
                self.name, lambda: self._look(client, terms), terms.clock, files,
                terms.shelf(files), endures=terms.endures,
            ),
            find=None if layout is None else self._finder(layout, terms),
            scan=None if layout is None else self._scanner(layout),
        )  # fmt: skip

    def _look(self, client: ClusterClient, terms: ViewTerms) -> Looked:
        # As of its begin: what ends meanwhile, the look may have missed.
        now_ms, facts = terms.clock.now_ms(), client.read_facts(self.scope.topics)
        folded = _folded(client, facts)
        settings = self.wanted(facts.topics)
        with self.decided() as log:
            found = cluster_status(
                client, facts, folded, log, None, settings, terms.clock, self.where,
                numbers=self.scope.partitions,
            )  # fmt: skip
        return Looked(attached=found, settings=settings, now_ms=now_ms)

    def _finder(self, layout: RemoteLayout, terms: ViewTerms) -> KeyFinder:
        """Return what finds keys in the chosen topics, as ``explain`` does.

        Each search reads what is new of the metadata topic, and the topic's objects.
        """
        client, scope = self.connect(), self.scope

        def find(
            topic: str,
            partition: int | None,
            asked: AskedKey,
            now_ms: int,
            *,
            planned: Callable[[int], None],
            progressed: Callable[[int], None],
        ) -> KeyAnswer:
            if scope.topics and topic not in scope.topics:
                raise InvalidError(f"this topic is not shown here. topic={topic}", code="K114")
            facts = client.read_facts([topic])
            chosen = [
                (each, number)
                for each in facts.topics
                for number in range(each.partition_count)
                if partition in (None, number) and scope.includes(TopicPartition(each.name, number))
            ]
            if not chosen:
                raise InvalidError(f"no such partition is shown here. topic={topic}", code="K115")
            with self.decided() as log:
                folded = _folded(client, facts, log, progressed)
                # A wait ends as the search does: with its budget, or with who asked.
                paced = PacedLayout(layout, pace_of(self.pace()), lambda: progressed(0))
                return answer_from_cluster(
                    client, facts, folded.cache, log, paced, self.wanted(facts.topics), chosen,
                    terms.clock, asked, grace_ms=self.grace_ms, memory_bytes=MEMORY_BYTES,
                    planned=planned, progressed=progressed,
                )  # fmt: skip

        return find

    def _scanner(self, layout: RemoteLayout) -> HeaderScanner:
        """Return what reads the batch headers of the chosen partitions.

        Each time folds the metadata topic from its beginning.
        """
        client = self.connect()

        def scan(
            partition: TopicPartition, now_ms: int, *, progressed: Callable[[int], None]
        ) -> LogHeaders:
            if not self.scope.includes(partition):
                raise InvalidError(
                    f"this partition is not shown here. partition={partition}", code="K115"
                )
            facts = client.read_facts([partition.topic])
            folded = _folded(client, facts, progressed=progressed)
            name = name_of(facts.topics[0], partition.partition)
            cache = folded.cache.partitions.get(name, PartitionCache())
            paced = PacedLayout(layout, pace_of(self.pace()), lambda: progressed(0))
            return scan_served_headers(paced, cache, now_ms, progressed)

        return scan


def attached_loop(
    client: ClusterClient,
    log: DecisionLog,
    layout: RemoteLayout,
    settings: AttachedSettings,
    limits: PaceLimits,
    looked: Callable[[Callable[[], PaceLimits]], LookedCluster],
) -> OpenLoop:
    """Return the loop over attached topics; what it and its console ask for keeps to one pace.

    ``limits`` are those of all processes that the runner has.
    """
    here = limits

    def start(runner: Runner, narrator: TierNarrator, events: Events) -> AttachedWork:
        nonlocal here
        if not runner.shares_memory:
            # Threads keep to one pace; a process knows of no other's.
            here = limits.shared_by(runner.slots)
        return AttachedWork(
            client, log, PacedLayout(layout, pace_of(here)), runner, SystemClock(), LocalFiles(),
            settings, narrator=narrator, events=events,
        )  # fmt: skip

    return OpenLoop(
        name=settings.address, receipt=settings.receipt, start=start, ends_at_second=True,
        view=lambda terms: looked(lambda: here).view(terms),
    )  # fmt: skip


def _folded(
    client: ClusterClient,
    facts: ClusterFacts,
    log: DecisionLog | None = None,
    progressed: Callable[[int], None] = lambda count: None,
) -> FoldedMetadata:
    """Return what brokers know of the topics; ``log`` may keep a beginning of it.

    RefusedError where there is no remote tier.
    """
    if facts.metadata_topic is None:
        raise RefusedError(
            f"nothing was ever copied to a remote tier here: there is no {METADATA_TOPIC}. "
            f"cluster={facts.cluster_id}",
            code="K407",
        )

    def kept(number: int) -> FoldCheckpoint | None:
        return None if log is None else KeptFolds(log.folds).find(facts.cluster_id, number)

    folded = fold_metadata(
        client, facts.metadata_topic, partitions_of(facts.topics, facts.metadata_topic),
        lambda _: progressed(0), kept,
    )  # fmt: skip
    folded.require_sound()
    return folded


def scan_served_headers(
    layout: RemoteLayout, cache: PartitionCache, now_ms: int, progressed: Callable[[int], None]
) -> LogHeaders:
    """Read the headers of what is served, as :func:`~keeplast.inspect.stages.scan_headers`.

    Every segment that brokers serve is read once, whole, also where another one lies over its end.
    CorruptError for a log that cannot be followed, ConflictError for a segment that went meanwhile,
    InvalidError where nothing is served.
    """
    served = {each.segment.start_offset: each.segment for each in cache.served()}
    if not served:
        raise InvalidError(
            "brokers serve nothing of it from the remote tier; look again", code="K407"
        )
    sources = tuple(source_of(served[start]) for start in sorted(served))
    files = AttachedRecipe(layout, sources, OutputMark(UNANNOUNCED, 0)).open()
    try:
        found = scan_headers(files.path, files, now_ms, progressed)
    except FileNotFoundError as error:
        raise ConflictError(
            "a segment was replaced and collected, or expired, while it was read; ask again. "
            f"path={error.filename or error}",
            code="K429",
        ) from error
    # After them stands an empty segment that there is not.
    return replace(found, segments={b: s for b, s in found.segments.items() if b in served})
