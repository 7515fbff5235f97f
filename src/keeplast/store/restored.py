"""A store whose metadata was restored from a backup: what it lacks, and how it goes on.

The objects are listed once and compared with the rows. What rows name and the place lacks was
removed since the backup; what lies there without a row was written since, or is garbage. Nothing
is removed here: metadata that was accepted collects what it does not know as it always does, when
that is old enough.
"""

from __future__ import annotations

from collections import Counter, defaultdict

from msgspec import Struct

from keeplast.errors import InvalidError
from keeplast.format.filename import parse_partition_directory
from keeplast.model.partition import TopicPartition
from keeplast.tier.metadata.collection import Marks
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.object_store import ObjectStore, object_key, segment_of_key
from keeplast.tier.state.segment import SegmentState


class Gap(Struct, frozen=True):
    """What metadata and objects do not have in common of one partition.

    ``missing_segments`` are live and have no object any more, at offsets ``[missing_start,
    missing_end)`` and among others; ``unknown_objects`` have no row, ``is_known`` is whether the
    partition has one.
    """

    partition: TopicPartition
    is_known: bool
    missing_segments: int = 0
    missing_bytes: int = 0
    missing_start: int | None = None
    missing_end: int | None = None
    unknown_segments: int = 0
    unknown_objects: int = 0
    unknown_bytes: int = 0


class Restored(Struct, frozen=True):
    """Whether the metadata is refused by the marks of its objects, and what it lacks."""

    is_refused: bool
    gaps: tuple[Gap, ...]
    is_accepted: bool = False


class Restoration:
    """The restoration of one opened store; see :attr:`.tiered_store.TieredStore.restoration`."""

    def __init__(self, store: MetadataStore, objects: ObjectStore, marks: Marks | None) -> None:
        self._store = store
        self._objects = objects
        self.marks = marks
        if marks is not None:
            store.hear_commits(marks.committing)

    def begin_turn(self) -> None:
        """Let the next commit mark again how far the metadata has been."""
        if self.marks is not None:
            self.marks.begin_turn()

    def plan(self) -> Restored:
        """List every object and compare; changes nothing."""
        if self.marks is None:
            raise InvalidError("a store that was not opened by its URL has no marks", code="K357")
        return Restored(self.marks.is_refused(), self._gaps())

    def accept(self) -> Restored:
        """Let this metadata count from here on; any other copy of it is refused then."""
        found = self.plan()
        if self.marks is None or not found.is_refused:
            return found
        self.marks.accept()
        return Restored(found.is_refused, found.gaps, is_accepted=True)

    def _gaps(self) -> tuple[Gap, ...]:
        keys: dict[str, set[str]] = defaultdict(set)
        sizes: dict[str, Counter[str]] = defaultdict(Counter)
        counts: dict[str, Counter[str]] = defaultdict(Counter)
        for found in self._objects.list(""):
            segment_id, name = segment_of_key(found.key), found.key.partition("/")[0]
            if segment_id is not None:
                keys[name].add(found.key)
                sizes[name][segment_id] += found.size_bytes
                counts[name][segment_id] += 1
        known = {
            str(each): each
            for each in (*self._store.partitions(), *self._store.partitions(is_forgotten=True))
        }
        gaps = []
        for name in sorted({*keys, *known}):
            parsed = parse_partition_directory(name)
            if name in known:
                gaps.append(self._gap(known[name], keys[name], sizes[name], counts[name]))
            elif parsed is not None:
                gaps.append(
                    Gap(
                        parsed.partition, is_known=False, unknown_segments=len(counts[name]),
                        unknown_objects=counts[name].total(), unknown_bytes=sizes[name].total(),
                    )
                )  # fmt: skip
        return tuple(each for each in gaps if each.missing_segments or each.unknown_segments)

    def _gap(
        self, partition: TopicPartition, keys: set[str], sizes: Counter[str], counts: Counter[str]
    ) -> Gap:
        state, rows = self._store.load(partition), self._store.known_ids(partition)
        missing = [
            route
            for route in state.routes
            for segment in (state.segments[route.segment_id],)
            if not keys.issuperset(
                object_key(partition, state.topic_id, route.segment_id, segment.base_offset, suffix)
                for suffix in segment.files
            )
        ]
        unknown = {
            segment_id
            for segment_id in counts
            if rows.get(segment_id, SegmentState.DELETED) is SegmentState.DELETED
        }
        return Gap(
            partition, is_known=True, missing_segments=len(missing),
            missing_bytes=sum(state.segments[each.segment_id].size_bytes for each in missing),
            missing_start=missing[0].base_offset if missing else None,
            missing_end=missing[-1].last_offset + 1 if missing else None,
            unknown_segments=len(unknown),
            unknown_objects=sum(counts[each] for each in unknown),
            unknown_bytes=sum(sizes[each] for each in unknown),
        )  # fmt: skip
