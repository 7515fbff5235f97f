"""Holds of attached topics, and of tiered ones that may be attached later.

Where a hold has to be is told by the log in the remote tier, which is read as a directory is, or,
as of now, by the brokers: what is decided there ends. The rule: **what was found counts only when
nothing was decided since**, by the row that the hold is added behind. Nothing is claimed, nobody is
fenced, and a topic is not attached by being held.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

from keeplast.attach.answers.shown_logs import told_from
from keeplast.attach.held.kept_folds import KeptFolds
from keeplast.attach.held.metadata_view import AttachTerms, MetadataView, look
from keeplast.attach.held.outputs import OutputMark
from keeplast.attach.held.ownership import OwnerObject
from keeplast.attach.held.publication import require_own
from keeplast.attach.rounds.attached_files import ROOT, AttachedRecipe, attached_path
from keeplast.attach.rounds.attached_place import NOBODY
from keeplast.attach.rounds.round import read_lineage, sources_of
from keeplast.attach.rounds.seams import measure_sources
from keeplast.clock import Clock
from keeplast.cluster.facts import TopicFacts
from keeplast.cluster.layouts.layout import RemoteLayout
from keeplast.cluster.live_cluster import LiveCluster
from keeplast.errors import ConflictError, RefusedError
from keeplast.log.data_directory import PartitionEntry
from keeplast.model.hold import Hold, HoldPoint, KeptPoint
from keeplast.model.partition import TopicPartition
from keeplast.read.held_point import decided_end, keep_end, keep_point, require_offset
from keeplast.run.holds import check_hold, look_at_entry
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.metadata.hold_rows import AttachedPoint
from keeplast.tier.objects.log_directory import LogDirectoryRecipe, ShownLog
from keeplast.tier.state.attached import Attached, AttachedName

LOOKS_MAX = 3
"""How often logs are looked at anew because rounds went on meanwhile."""


class HeldCluster(LiveCluster, Protocol):
    """A cluster that says where what is decided of a topic's partitions ends."""

    def read_stable_ends(self, topic: TopicFacts) -> list[int]:
        """Return the last stable offset of each partition."""
        ...


class AttachedHolds:
    """The holds of one cluster in one decision log."""

    def __init__(
        self, cluster: HeldCluster, log: DecisionLog, layout: RemoteLayout, clock: Clock
    ) -> None:
        """Take the components; nothing is read yet."""
        self._cluster = cluster
        self._log = log
        self._layout = layout
        self._clock = clock
        self._folds = KeptFolds(log.folds)

    def add(
        self,
        chosen: Sequence[tuple[AttachedName, AttachTerms]],
        name: str,
        point: HoldPoint,
        max_age_ms: int,
    ) -> tuple[Hold, ...]:
        """Keep rounds of every host from passing ``point``, for ``max_age_ms`` from now; all or
        none.

        InvalidError for a name, age or offset that cannot be, and for a point behind what the
        remote tier has. RefusedError for a topic that may not be attached, or that another decision
        log compacts, where the state as of the point cannot be told any more, and where the name is
        taken. ConflictError when rounds go on for every look.
        """
        check_hold(name, point, max_age_ms, len(chosen))
        for left in reversed(range(LOOKS_MAX)):
            try:
                points = [self._find(each, terms, point) for each, terms in chosen]
                return self._log.hold_rows.add_attached(points, name, max_age_ms)
            except ConflictError:
                if not left:
                    raise
        raise AssertionError("unreachable")

    def _find(self, name: AttachedName, terms: AttachTerms, point: HoldPoint) -> AttachedPoint:
        known = self._log.find(name)
        seen = None if known is None else known.seen
        view = look(self._cluster, name, terms, seen, kept=self._folds)
        view.require_continued()
        self._require_ours(view, known)
        number = name.partition.partition
        # In this order: what is open at the end begins at or behind what was decided before.
        stable = self._cluster.read_stable_ends(view.topic)[number]
        end = self._cluster.read_ranges(view.topic)[number].end
        if point.is_now and end <= stable:
            # Nothing is in flight there.
            kept = KeptPoint(stable, stable)
        else:
            kept = self._find_kept(view, known, point, stable, end)
        return AttachedPoint(name, known, view.log.start, view.point, kept)

    def _require_ours(self, view: MetadataView, known: Attached | None) -> None:
        """Raise RefusedError when another decision log, or a newer copy of it, is at work."""
        require_own(view, self._log)
        owner = OwnerObject(self._layout, view.name, self._log.store_id()).read()
        if owner is not None and owner.epoch > (0 if known is None else known.epoch):
            raise RefusedError(
                "the owner object says a later epoch than the decision log: the log is an older "
                "one, and whoever has the newest would not know of the hold. Use that. "
                f"partition={view.name} epoch={owner.epoch}"
            )

    def _find_kept(
        self, view: MetadataView, known: Attached | None, point: HoldPoint, stable: int, end: int
    ) -> KeptPoint:
        """Return how states are kept, by what rounds may reach of the log.

        What is in flight at a point behind that begins at or behind what is decided in it.
        """
        at, log_start = view.name.partition, view.log.start
        partition = TopicPartition(at.topic, at.partition)
        asked = stable if point.is_now else point.offset
        if asked is not None:
            require_offset(partition, asked, log_start=log_start, end=end)
        lineage_of = partial(read_lineage, self._layout)
        sources = measure_sources(
            self._layout,
            sources_of(
                lineage_of, view.cache, log_start, margin_bytes=0, now_ms=self._log.clock.now_ms()
            ),
        )
        if not sources.segments:
            # There is nothing that could be cleaned.
            return KeptPoint(log_start if asked is None else asked, log_start)
        told = told_from(view.cache, self._log, known, log_start=log_start)
        shown = ShownLog(
            partition=partition,
            files=AttachedRecipe(
                self._layout, sources.segments, OutputMark(NOBODY, 0), shows_snapshots=True
            ),
            log_start=max(log_start, sources.segments[0].start_offset),
            told_from=min(told, sources.end), topic_id=at.topic_id,
            lineage=tuple(lineage_of(sources.segments[-1].newest)),
        )  # fmt: skip
        files = LogDirectoryRecipe(ROOT, (shown,)).open()
        entry = PartitionEntry(partition, attached_path(at), None)
        reached = look_at_entry(entry, files, self._clock)
        if asked is not None and asked >= reached.log_end:
            return KeptPoint(asked, decided_end(reached))
        if point.is_now:
            return keep_end(reached, stable, files, self._clock, is_noted=True)
        return keep_point(reached, point, files, self._clock, is_noted=True)
