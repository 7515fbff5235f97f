"""How far metadata has been, written where its objects are: what is older may delete nothing.

Metadata that was restored from a backup does not know what was committed since, and would collect
it as garbage. So the place of the objects keeps a mark: an object whose name is a number that only
grows and whose content is drawn anew each time. The metadata keeps the newest one it has made.

What a reader must not break:

1. The metadata's mark is raised first, then the object is written, by a put that never replaces
   one. A crash between the two leaves a place that is behind, which is harmless; the other way
   round would shut good metadata out.
2. No commit is made before a mark of this turn is there, and no deletion is announced before one
   that is younger than the last commit. What a backup lacks, a mark that it lacks tells of.
3. It is looked at before every announcement: the place first, then the metadata, which several
   hosts raise. A place with a greater number than the metadata, or with another content at the
   same number, belongs to newer metadata, or to another copy of it.

There is no clock in it. Older marks go when a newer one is there: a listing finds one or two.
"""

from __future__ import annotations

import re
import secrets
import threading
from dataclasses import dataclass

from keeplast.errors import ConflictError, RefusedError
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.metadata.schema import MARK
from keeplast.tier.metadata.store_name import name_older, take_name
from keeplast.tier.objects.object_store import MARKS, ObjectPlace

LOOKS_MAX = 5
DIGITS = 20
TOKEN_CHARS = 32
_KEY = re.compile(rf"{MARKS}/[0-9]{{{DIGITS}}}")


@dataclass(frozen=True, slots=True)
class Mark:
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
        """Look at the place anew, and let the next commit write a mark of its own."""
        with self._lock:
            self._is_looked_at = self._is_begun = False

    def beginning(self) -> None:
        """Hear of work that will end in commits; RefusedError as of them, at once.

        Looks once a turn: whoever does nothing pays for a listing.
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
        for left in reversed(range(LOOKS_MAX)):
            try:
                made = self._store.raise_mark(_new_token())
                break
            except ConflictError:  # Two hosts make the first one.
                if not left:
                    raise
        self._write(made)
        self._is_begun, self._has_committed = True, False

    def _write(self, made: tuple[int, str]) -> None:
        mark = Mark(*made)
        key = _key(mark.number)
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
        for left in reversed(range(LOOKS_MAX)):
            newest = max(self._keys(), default=None)
            if newest is None:
                return Mark()
            number = int(newest.rpartition("/")[2])
            try:
                if number != self._seen.number:
                    self._seen = Mark(number, self._read(newest))
                return self._seen
            except FileNotFoundError:  # Another host has written a newer one meanwhile.
                if not left:
                    raise
        raise AssertionError("unreachable")

    def _keys(self) -> list[str]:
        """Return the marks that are there; what else lies beside them is somebody else's."""
        return [each.key for each in self._objects.list(MARKS) if _KEY.fullmatch(each.key)]

    def _read(self, key: str) -> str:
        return bytes(self._objects.read_range(key, 0, TOKEN_CHARS)).decode("ascii", "replace")


def _key(number: int) -> str:
    return f"{MARKS}/{number:0{DIGITS}d}"


def _new_token() -> str:
    return secrets.token_hex(TOKEN_CHARS // 2)


def _explain_refusal(known: Mark, placed: Mark) -> RefusedError:
    return RefusedError(
        "the metadata is older than its objects, or another copy of it is at work in the same "
        "place: what it does not know would be collected as garbage. Restore the newest metadata, "
        "or see what would be lost and go on with this one: keeplast tier accept. "
        f"metadata_mark={known.number} objects_mark={placed.number}"
    )
