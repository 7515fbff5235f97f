"""Removes garbage of a store: replaced segments and objects without a row. Keeps its name and
marks.

The collection handles metadata first, objects later (KIP-1272). A replaced segment is deleted when
its grace has passed, nothing routes to it, and the segments that are live cover its range in this
lineage. The deletion is announced in a fenced transaction before an object goes. Objects without a
row are what a crash or a late attempt left. They go after a minimum age, because their writer may
still be about to commit. Only the owner of the newest epoch collects. Source: tiering.md section
9.3.

The name of a store is an id that its metadata has drawn once, written on the place of its objects.
What a reader must not break: **a place has one name, and a store one**. Of two stores in one place
each would collect the other's objects as garbage. Whatever is said of a store elsewhere, as in a
certificate, is bound to it by this name, which a copy of its metadata has too.

Marks show how far metadata has been, and lie where its objects are: what is older may delete
nothing. Metadata that was restored from a backup does not know what was committed since, and would
collect it as garbage. So the place of the objects keeps a mark. It is an object whose name is a
number that only grows and whose content is newly drawn each time. The metadata keeps the newest one
it has made. What a reader must not break:

1. The metadata's mark is raised first, then the object is written, by a put that never replaces
   one. A crash between the two leaves a place with the older mark, which is harmless; the other way
   round would shut good metadata out.
2. No commit is made before a mark of this turn is there. No deletion is announced before one that
   is younger than the last commit. A mark that a backup lacks shows that it lacks commits.
3. The mark is looked at before every announcement: the place first, then the metadata, which
   several hosts raise. A place with a greater number than the metadata belongs to newer metadata,
   or to another copy of it. So does one with another content at the same number.

There is no clock in it. Older marks go when a newer one is there: a listing finds one or two.
"""

from __future__ import annotations

import re
import secrets
import threading
from collections import defaultdict

from msgspec import Struct

from keeplast.clock import Clock
from keeplast.errors import ConflictError, RefusedError, retry_on
from keeplast.model.partition import TopicPartition
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.metadata.schema import MARK
from keeplast.tier.metadata.stored_logs import OBJECTS
from keeplast.tier.objects.object_store import (
    ID_CHARS,
    MARKS,
    STORE_NAME,
    ObjectPlace,
    ObjectStore,
    segment_of_key,
)
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.segment import RemoteSegment, SegmentState, is_within_lineage

NAME = "name"
IGNORES_CONDITIONS = (
    "this object store ignores the condition that an object is written only where there is none "
    "(If-None-Match), so that two stores could take one place; use one that heeds it"
)


def find_name(store: MetadataStore) -> str | None:
    """Return the store's name, None for one of an early version to which nothing was written since.

    Reads only.
    """
    return store.find_fact(NAME)


def write_name(store: MetadataStore, objects: ObjectPlace, url: str) -> None:
    """Write the store's name on the place of its objects, which is drawn the first time.

    RefusedError when another store's name is there, or when the place keeps no name, because it
    writes over an object that is there.
    """
    name = store.fact(NAME, lambda: secrets.token_hex(ID_CHARS // 2)).encode()
    # A place that heeds no condition must not lose the name that it has.
    if _is_named(objects) and _read_name(objects) != name:
        raise _explain_other(url)
    # A process that looked first and wrote then would take a place from another one that does the
    # same.
    objects.put_new(STORE_NAME, name)
    if _read_name(objects) != name:
        raise _explain_other(url)
    if objects.put_new(STORE_NAME, name):
        raise RefusedError(f"{IGNORES_CONDITIONS}. objects={url}", code="K312")


def check_name(store: MetadataStore, objects: ObjectPlace, url: str) -> None:
    """Raise RefusedError where the place has another store's name; writes nothing."""
    if _is_named(objects) and _read_name(objects).decode("ascii", "replace") != find_name(store):
        raise _explain_other(url)


def name_older(store: MetadataStore, objects: ObjectPlace) -> None:
    """Draw the name of a store that was made before places had names; nothing for one that has one.

    RefusedError, and no name is drawn, where another store has the place by now.
    """
    if find_name(store) is not None:
        return
    url = store.find_fact(OBJECTS) or ""
    # Another host may have drawn ours, and written it there, between the two looks.
    if _is_named(objects) and find_name(store) is None:
        raise _explain_other(url)
    write_name(store, objects, url)


def take_name(store: MetadataStore, objects: ObjectPlace) -> None:
    """Take the place's name for a store without one: of metadata that is let count from here on.

    It went back to before the name was drawn, or the place's other metadata is gone.
    """
    if find_name(store) is None and _is_named(objects):
        found = _read_name(objects).decode("ascii", "replace")
        store.fact(NAME, lambda: found)


def _is_named(objects: ObjectPlace) -> bool:
    try:
        objects.stat(STORE_NAME)
    except FileNotFoundError:
        return False
    return True


def _read_name(objects: ObjectPlace) -> bytes:
    return bytes(objects.read_range(STORE_NAME, 0, ID_CHARS))


def _explain_other(url: str) -> RefusedError:
    return RefusedError(
        "the objects there belong to another store, and would be collected as garbage; choose "
        "another place, or, when that store is no more and nothing of it is needed, remove the "
        f"object {STORE_NAME} first. objects={url}",
        code="K327",
    )


LOOKS_MAX = 5
DIGITS = 20
TOKEN_CHARS = 32
_KEY = re.compile(rf"{MARKS}/[0-9]{{{DIGITS}}}")


class Mark(Struct, frozen=True):
    """The ``number`` of a mark, and its content; zero and nothing where there is none."""

    number: int = 0
    token: str = ""


class Marks:
    """The marks of one opened store. Thread-safe."""

    def __init__(self, store: MetadataStore, objects: ObjectPlace) -> None:
        self._store = store
        self._objects = objects
        self._lock = threading.Lock()
        self._is_looked_at = self._is_begun = False
        self._has_committed = False
        self._seen = Mark()

    def begin_turn(self) -> None:
        """Look at the place again, and let the next commit write a mark of its own."""
        with self._lock:
            self._is_looked_at = self._is_begun = False

    def beginning(self) -> None:
        """Hear of work that will end in commits; RefusedError as of them, at once.

        Looks once a turn: a process that does nothing pays for one listing.
        """
        with self._lock:
            if not self._is_looked_at:
                self._check()
                self._is_looked_at = True

    def committing(self) -> None:
        """Hear of a commit before it is made: the first one of a turn writes a mark.

        RefusedError for metadata that is older than its objects, or another copy of it.
        """
        with self._lock:
            if not self._is_begun:
                self._advance()
            self._has_committed = True

    def deleting(self) -> None:
        """Hear of a deletion before it is announced; RefusedError as of a commit."""
        with self._lock:
            if self._has_committed or not self._is_begun:
                self._advance()
            else:
                self._check()

    def is_refused(self) -> bool:
        """Say whether the metadata is older than its objects, or another copy of it."""
        with self._lock:
            return not self._holds()

    def accept(self) -> None:
        """Let this metadata count from here on, whatever other one has been here.

        RefusedError when another one was faster.
        """
        with self._lock:
            take_name(self._store, self._objects)
            self._write(self._store.raise_mark(_new_token(), self._read_placed().number))

    def _advance(self) -> None:
        self._check()
        name_older(self._store, self._objects)
        # Two hosts make the first one.
        raised = retry_on(ConflictError, LOOKS_MAX, lambda: self._store.raise_mark(_new_token()))
        self._write(raised)
        self._is_begun, self._has_committed = True, False

    def _write(self, made: tuple[int, str]) -> None:
        mark = Mark(*made)
        key = f"{MARKS}/{mark.number:0{DIGITS}d}"
        try:
            is_ours = self._objects.put_new(key, mark.token.encode()) or (
                self._read(key) == mark.token
            )
        except (
            FileNotFoundError
        ):  # Somebody has written a newer one meanwhile, and ours may be his.
            self._check()
            return
        if not is_ours:
            raise _explain_refusal(mark, self._read_placed())
        self._seen = mark
        self._objects.delete([each for each in self._keys() if each < key])

    def _check(self) -> None:
        if not self._holds():
            raise _explain_refusal(self._read_known(), self._read_placed())

    def _holds(self) -> bool:
        placed = self._read_placed()
        known = self._read_known()
        return placed.number < known.number or placed == known

    def _read_known(self) -> Mark:
        number, _, token = (self._store.find_fact(MARK) or "0 ").partition(" ")
        return Mark(int(number), token)

    def _read_placed(self) -> Mark:
        """Return the newest mark that is there; objects are written once, and read once."""
        # Another host may write a newer one between a list and a read.
        return retry_on(FileNotFoundError, LOOKS_MAX, self._read_newest)

    def _read_newest(self) -> Mark:
        newest = max(self._keys(), default=None)
        if newest is None:
            return Mark()
        number = int(newest.rpartition("/")[2])
        if number != self._seen.number:
            self._seen = Mark(number, self._read(newest))
        return self._seen

    def _keys(self) -> list[str]:
        """Return the marks that are there; other objects next to them are not the store's."""
        return [each.key for each in self._objects.list(MARKS) if _KEY.fullmatch(each.key)]

    def _read(self, key: str) -> str:
        return bytes(self._objects.read_range(key, 0, TOKEN_CHARS)).decode("ascii", "replace")


def _new_token() -> str:
    return secrets.token_hex(TOKEN_CHARS // 2)


def _explain_refusal(known: Mark, placed: Mark) -> RefusedError:
    return RefusedError(
        "the metadata is older than its objects, or another copy of it is at work in the same "
        "place: what it does not know would be collected as garbage. Restore the newest metadata, "
        "or see what would be lost and go on with this one: keeplast repair --accept-metadata. "
        f"metadata_mark={known.number} objects_mark={placed.number}",
        code="K326",
    )


class Collected(Struct, frozen=True):
    """What a pass removed, and how many replaced segments still wait."""

    segments: int
    objects: int
    bytes: int
    waiting: int


def is_covered(segment: RemoteSegment, state: PartitionState) -> bool:
    """Say whether no reader can need ``segment``.

    What it held is below the log start, outside of the lineage, or read from live segments of the
    lineage without a hole.
    """
    if segment.last_offset < state.log_start or not is_within_lineage(
        segment, state.lineage, state.remote_end
    ):
        return True
    at = max(segment.base_offset, state.log_start)
    for route in state.routes:
        if route.base_offset <= at <= route.last_offset:
            live = state.segments[route.segment_id]
            if not is_within_lineage(live, state.lineage, state.remote_end):
                return False
            at = route.last_offset + 1
    return at > segment.last_offset


def collect(
    store: MetadataStore,
    objects: ObjectStore,
    partition: TopicPartition,
    *,
    epoch: int,
    garbage_age_ms: int,
    clock: Clock,
    marks: Marks | None = None,
) -> Collected:
    """Do one pass as the owner at ``epoch``; FencedError when a newer one exists.

    ``clock`` is the store's: nothing goes while this host's differs. ``marks`` are the place's:
    RefusedError, and nothing more goes, when they say that the metadata is an older one.
    """
    clock.now_ms()
    store.undo_rows.sweep(partition, epoch=epoch)
    state = store.load(partition)
    removed = count = size = waiting = 0
    by_segment: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    # Listed before the rows are read: what is committed meanwhile has a row by then.
    # All of the partition's, also those of a topic of its name that was given up before.
    for found in objects.list(str(partition)):
        segment_id = segment_of_key(found.key)
        if segment_id is not None:
            by_segment[segment_id].append((found.key, found.size_bytes, found.modified_ms))
    now_ms = clock.now_ms()
    for orphan in store.orphans(partition):
        segment_id = orphan.segment.segment_id
        # Not asked for those that wait: each question looks at the place of the objects.
        may_go = orphan.not_before_ms <= now_ms and is_covered(orphan.segment, state)
        if may_go and marks is not None:
            marks.deleting()
        if not may_go or not store.start_delete(partition, epoch=epoch, segment_id=segment_id):
            waiting += 1
            continue
        keys = by_segment.pop(segment_id, [])
        objects.delete([key for key, _, _ in keys])
        store.finish_delete(partition, epoch=epoch, segment_id=segment_id)
        removed += 1
        count += len(keys)
        size += sum(found_bytes for _, found_bytes, _ in keys)
    known = store.known_ids(partition)
    for segment_id, keys in by_segment.items():
        newest = max(modified_ms for _, _, modified_ms in keys)
        # What was removed may get a filter once more, from a late round.
        is_gone = known.get(segment_id, SegmentState.DELETED) is SegmentState.DELETED
        if not is_gone or newest > now_ms - garbage_age_ms:
            continue
        if marks is not None:
            marks.deleting()
        store.check_owner(partition, epoch=epoch)
        objects.delete([key for key, _, _ in keys])
        count += len(keys)
        size += sum(found_bytes for _, found_bytes, _ in keys)
        by_segment[segment_id] = []
    # A late process may still write objects for what was given up, and no collection would look for
    # them.
    is_over = state.forgotten_ms is not None and state.forgotten_ms <= now_ms - garbage_age_ms
    if is_over and not waiting and not any(by_segment.values()):
        store.removals.remove(state)
    return Collected(removed, count, size, waiting)
