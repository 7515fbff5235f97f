"""Puts back what the newest round of a stored partition replaced, in one transaction.

What a round with ``undo.retention.ms`` replaced stays in object storage and in the metadata, which
says what of it can come back (:mod:`keeplast.tier.metadata.undo_rows`). Here every object that
would be read again is read and compared first, and the line of the receipt is written; then the
owner's transaction lets the sources be read, the outputs wait for their grace, and the first dirty
offset go back. A reader finds the log before or after; a crash leaves it before, or after.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from dataclasses import dataclass, replace

from keeplast.clock import Clock
from keeplast.errors import RefusedError
from keeplast.log.erasure_requests import decode_book, encode_book
from keeplast.model.erasure_request import RequestBook
from keeplast.model.partition import TopicPartition
from keeplast.model.undo import UndoBar, UndoRefusal
from keeplast.run.receipt import Receipt, undo_line
from keeplast.run.undo import UndoRound
from keeplast.run.undo_bar import erasure_bar, erasure_refusal
from keeplast.survey.kept_heads import anchor_of
from keeplast.survey.wording import undo_words
from keeplast.tier.metadata.kept_text import ERASURES
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.metadata.ownership import Ownership
from keeplast.tier.objects.object_store import ID_CHARS, ObjectStore, object_key
from keeplast.tier.objects.transfer import crc_of
from keeplast.tier.state.kept_rounds import KeptRound, find_bar
from keeplast.tier.state.partition_state import PartitionState

WHERE = "the metadata store"
Progressed = Callable[[int], None]


class StoreUndo:
    """The rounds of one opened store that can be undone; see :attr:`.TieredStore.undo`."""

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
                f"partition={partition}"
            )
        refusal = find_bar(state, newest) or self._compare(state, newest, progressed)
        if refusal is not None:
            raise RefusedError(
                f"the round cannot be undone: {undo_words(refusal)}; what it has kept goes in its "
                f"time, or with keeplast undo --drop. round={newest.round} partition={partition}"
            )
        if writes:
            # A row that is there can be locked: of the first request and an undo, too, one waits.
            self._store.fact(ERASURES, lambda: encode_book(RequestBook(), WHERE).decode("ascii"))
            line = None
            if receipt is not None:
                line = receipt(
                    undo_line(
                        partition, self._clock.now_ms(), attempt=newest.round,
                        groups=newest.groups(state), checkpoint=newest.first_dirty[0],
                        more=newest.chunks[1:],
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


@dataclass(frozen=True, slots=True)
class UndoneStore:
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
