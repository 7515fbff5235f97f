"""What keeps the states of a store's partitions, and what brings one back: holds, and undo.

*Holds.* The log says where they have to be, rows keep them. The log is read as a directory's is,
without a lock. What was found counts only when nothing has been cleaned or cut since, by the rows
whose lock the hold is added under. A process that decides a round then meets the hold:
:mod:`keeplast.tier.metadata.hold_rows`.

*Undo* puts back what the newest round of a stored partition replaced, in one transaction. What a
round with ``undo.retention.ms`` replaced stays in object storage and in the metadata, which says
what of it can come back (:mod:`keeplast.tier.metadata.undo_rows`). First every object that would be
read again is read and compared, and the line of the receipt is written. Then the owner's
transaction lets the sources be read, the outputs wait for their grace, and the first dirty offset
go back. A reader finds the log before or after; a crash leaves it before, or after.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from keeplast.clock import Clock
from keeplast.errors import ConflictError, InvalidError, RefusedError, retry_on
from keeplast.log.data_directory import PartitionEntry
from keeplast.log.root_files import decode_book, encode_book
from keeplast.model.erasure_request import RequestBook
from keeplast.model.hold import HeldTopic, Hold, HoldPoint
from keeplast.model.partition import TopicPartition
from keeplast.model.undo import UndoBar, UndoRefusal
from keeplast.read.held_point import keep_point
from keeplast.run.holds import check_hold, choose_partitions, look_at_entry
from keeplast.run.receipt import Receipt, undo_line
from keeplast.run.undo import UndoRound, erasure_bar, erasure_refusal
from keeplast.survey.kept_heads import anchor_of
from keeplast.survey.wording import undo_words
from keeplast.tier.metadata.facts import ERASURES
from keeplast.tier.metadata.hold_rows import StoredPoint
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.metadata.ownership import Ownership
from keeplast.tier.metadata.stored_logs import shown_log
from keeplast.tier.objects.log_directory import LogDirectoryRecipe
from keeplast.tier.objects.object_store import ID_CHARS, ObjectStore, object_key
from keeplast.tier.objects.round_files import ROOT, round_path
from keeplast.tier.objects.transfer import crc_of
from keeplast.tier.state.kept_rounds import KeptRound, find_bar
from keeplast.tier.state.partition_state import PartitionState

LOOKS_MAX = 5
"""How often logs are looked at again because rounds went on meanwhile."""


class StoreHolds:
    """The holds of one opened store; see :attr:`.tiered_store.TieredStore.holds`."""

    def __init__(self, store: MetadataStore, objects: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._objects = objects
        self._clock = clock

    def now_ms(self) -> int:
        """Return the time that decides when holds end: the store's."""
        return self._store.hold_rows.now_ms()

    def all(self) -> tuple[HeldTopic, ...]:
        """Return every hold, those that are over too, until the next is added."""
        return self._store.hold_rows.stored()

    def choose(
        self, topics: Sequence[str], partitions: Sequence[int]
    ) -> tuple[TopicPartition, ...]:
        """Return the partitions of ``topics`` with one of these numbers; no numbers are all.

        InvalidError for a topic or number that is not there.
        """
        return choose_partitions(self._store.partitions(), topics, partitions, "the store")

    def add(
        self, partitions: Sequence[TopicPartition], name: str, point: HoldPoint, max_age_ms: int
    ) -> tuple[Hold, ...]:
        """Keep rounds of every host from passing ``point``, for ``max_age_ms`` from now; all or
        none.

        InvalidError for a name, age or offset that cannot be, and where nothing was copied.
        RefusedError where the state as of the point cannot be shown any more, and where the name is
        taken. ConflictError when rounds go on for every look.
        """
        check_hold(name, point, max_age_ms, len(partitions))
        return retry_on(
            ConflictError, LOOKS_MAX,
            lambda: self._store.hold_rows.add_stored(
                [self._find(each, point) for each in partitions], name, max_age_ms
            ),
        )  # fmt: skip

    def release(self, name: str) -> tuple[Hold, ...]:
        """Remove all holds of a name, those that are over too; InvalidError when there is none."""
        return self._store.hold_rows.release_stored(name)

    def _find(self, partition: TopicPartition, point: HoldPoint) -> StoredPoint:
        state = self._store.load(partition)
        if not state.routes:
            raise InvalidError(
                f"nothing was copied yet, so that there is nothing to hold. partition={partition}",
                code="K344",
            )
        files = LogDirectoryRecipe(ROOT, (shown_log(state, self._objects),)).open()
        entry = PartitionEntry(partition, round_path(partition), None)
        view = look_at_entry(entry, files, self._clock)
        return StoredPoint(state, keep_point(view, point, files, self._clock, is_noted=True))


WHERE = "the metadata store"
Progressed = Callable[[int], None]


class StoreUndo:
    """The rounds of one opened store that can be undone; see ``TieredStore.undo``."""

    def __init__(
        self, store: MetadataStore, objects: ObjectStore, clock: Clock, ownership: Ownership
    ) -> None:
        self._store = store
        self._objects = objects
        self._clock = clock
        self._ownership = ownership

    def rounds(self, partition: TopicPartition) -> tuple[UndoRound, ...]:
        """Return every round that has kept what it replaced, the newest first; reads no object.

        A round that looks whole here may still be refused when its objects are read.
        """
        state, kept = self._store.undo_rows.kept(partition)
        if not kept:
            return ()
        found = (
            _shown(
                state, each,
                UndoRefusal(UndoBar.LATER_ROUND) if number else find_bar(state, each),
            )
            for number, each in enumerate(kept)
        )  # fmt: skip
        why = erasure_refusal(_book(self._store.find_fact(ERASURES)), partition.topic)
        return tuple(replace(each, refusal=each.refusal or why) for each in found)

    def put_back(
        self,
        partition: TopicPartition,
        *,
        grace_ms: int,
        takes_over: bool = False,
        writes: bool = True,
        receipt: Receipt | None = None,
        progressed: Progressed = lambda count: None,
        named: str | None = None,
    ) -> UndoRound | None:
        """Undo the newest round that has kept what it replaced; None where none has.

        As the partition's owner; ``receipt`` takes a line before anything comes back. ``writes``
        False reads and compares every object, owns nothing and changes nothing. RefusedError when
        it cannot be undone, and when it is another one than ``named``; ConflictError when the
        partition changed meanwhile.
        """
        if writes:
            self._ownership.own(partition, takes_over=takes_over)
        state, kept = self._store.undo_rows.kept(partition)
        self._allow(partition, self._store.find_fact(ERASURES))
        if not kept:
            return None
        newest = kept[0]
        if named is not None and newest.round != named:
            raise RefusedError(
                "another round is the newest by now: a process has undone or cleaned meanwhile; "
                f"list the rounds, and call again. round={named} newest={newest.round} "
                f"partition={partition}",
                code="K607",
            )
        refusal = find_bar(state, newest) or self._compare(state, newest, progressed)
        if refusal is not None:
            raise RefusedError(
                f"the round cannot be undone: {undo_words(refusal)}; what it has kept goes in its "
                f"time, or with keeplast undo --drop. round={newest.round} partition={partition}",
                code="K605",
            )
        if writes:
            # A row that is there can be locked: of the first request and an undo, too, one waits.
            self._store.fact(ERASURES, lambda: encode_book(RequestBook(), WHERE).decode("ascii"))
            line = (
                None
                if receipt is None
                else receipt(
                    undo_line(
                        partition, self._clock.now_ms(), attempt=newest.round,
                        groups=newest.groups(state), checkpoint=newest.first_dirty[0],
                        more=newest.chunks[1:],
                    )
                )
            )  # fmt: skip
            self._store.undo_rows.put_back(
                state, secrets.token_hex(ID_CHARS // 2), newest.number, grace_ms=grace_ms,
                allowed=lambda text: self._allow(partition, text),
                anchor=anchor_of(self._store.facts, line),
            )  # fmt: skip
        return _shown(state, newest, None)

    def drop(self, partition: TopicPartition, *, takes_over: bool = False) -> int:
        """Let all that is kept go before its time, as the owner; returns how many rounds.

        Objects go with collections, when their grace has passed.
        """
        state = self._ownership.own(partition, takes_over=takes_over)
        return self._store.undo_rows.drop(partition, epoch=state.leader_epoch)

    def _allow(self, partition: TopicPartition, text: str | None) -> None:
        """Raise RefusedError where keys of the topic are to be gone, by the store's requests."""
        erasure_bar(_book(text), partition.topic, WHERE)

    def _compare(
        self, state: PartitionState, kept: KeptRound, progressed: Progressed
    ) -> UndoRefusal | None:
        """Return what of the sources is not what was stored, by the bytes of every object."""
        for segment_id in kept.source_ids:
            segment = kept.segments[segment_id]
            for suffix, stored in segment.files.items():
                key = object_key(
                    state.partition, state.topic_id, segment_id, segment.base_offset, suffix
                )
                try:
                    found = crc_of(self._objects, key)
                except FileNotFoundError:
                    found = None
                if found != (stored.crc32c, stored.size_bytes):
                    return UndoRefusal(UndoBar.COPY, segment.base_offset)
                progressed(stored.size_bytes)
        return None


class UndoneStore(Struct, frozen=True):
    """A store as a place of undos: see :func:`keeplast.run.undoing.undo_partitions`."""

    undo: StoreUndo
    grace_ms: int
    takes_over: bool = False
    writes: bool = True
    receipt: Receipt | None = None
    progressed: Progressed = lambda count: None

    def names(self, partition: TopicPartition) -> list[str]:
        """Return the rounds that are kept, the newest first."""
        return [each.round for each in self.undo.rounds(partition)]

    def undo_newest(self, partition: TopicPartition, named: str | None) -> UndoRound | None:
        """Undo one: ``named`` and no other, or any. No lock is held while names are looked up."""
        return self.undo.put_back(
            partition, grace_ms=self.grace_ms, takes_over=self.takes_over, writes=self.writes,
            receipt=self.receipt, progressed=self.progressed, named=named,
        )  # fmt: skip


def _book(text: str | None) -> RequestBook:
    """Return the store's erasure requests of their text, None where there never was one."""
    return RequestBook() if text is None else decode_book(text.encode(), WHERE)


def _shown(state: PartitionState, kept: KeptRound, refusal: UndoRefusal | None) -> UndoRound:
    back = [kept.segments[each] for each in kept.source_ids if each in kept.segments]
    first, after = kept.first_dirty
    return UndoRound(
        topic=state.partition.topic,
        partition=state.partition.partition,
        round=kept.round,
        kept_at_ms=kept.kept_at_ms,
        until_ms=kept.until_ms,
        first=kept.swaps[0].base_offset if kept.swaps else first,
        end=kept.swaps[-1].last_offset + 1 if kept.swaps else after,
        segments=len(back),
        bytes=sum(each.size_bytes for each in back),
        checkpoint=first,
        is_in_place=True,
        refusal=None if refusal is None else undo_words(refusal),
    )
