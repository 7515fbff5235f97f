"""An object that is written as a stream where there must not be one yet, in bounded memory.

One that fits into a part appears by a request that never replaces another. A larger one goes up in
parts, which no store joins under a condition that this library has. It is looked for before its
first part and before its last. So only a second writer of the same key in that very moment could be
overwritten. Keys have ids that are drawn; no two writers have the same.
"""

from __future__ import annotations

from keeplast.errors import ConflictError, UnavailableError, invariant
from keeplast.log.files import Buffer
from keeplast.tier.objects.object_store import ObjectPlace, ObjectWriter
from keeplast.tier.objects.stores import PART_BYTES


class NewObject:
    """An object while it is written; nothing appears before ``close``."""

    def __init__(self, objects: ObjectPlace, key: str) -> None:
        """ConflictError when there is one already."""
        self._objects = objects
        self._key = key
        self._waiting = bytearray()
        self._writer: ObjectWriter | None = None
        self.size_bytes = 0
        self._is_open = True
        self._check_absent()

    def write(self, data: Buffer) -> None:
        """Append; what does not fit into a part is sent."""
        self._check_open()
        self.size_bytes += memoryview(data).nbytes
        if self._writer is None and self.size_bytes <= PART_BYTES:
            self._waiting += data
            return
        if self._writer is None:
            self._writer = self._objects.open_write(self._key)
            self._writer.write(self._waiting)
            self._waiting = bytearray()
        self._writer.write(data)

    def close(self) -> None:
        """Make the object appear, whole.

        ConflictError when there is another one, UnavailableError when the store has not kept all.
        """
        self._check_open()
        self._is_open = False
        if self._writer is None:
            put_once(self._objects, self._key, bytes(self._waiting))
            return
        try:
            self._check_absent()
        except BaseException:
            self._writer.abort()
            raise
        self._writer.close()
        found = self._objects.stat(self._key).size_bytes
        if found != self.size_bytes:
            raise UnavailableError(
                "the object store has not kept what was sent; it is written again. "
                f"key={self._key} expected_bytes={self.size_bytes} found_bytes={found}",
                code="K305",
            )

    def abort(self) -> None:
        """Give up what was written; nothing appears."""
        self._is_open = False
        self._waiting = bytearray()
        if self._writer is not None:
            self._writer.abort()

    def _check_open(self) -> None:
        invariant(self._is_open, f"the object is complete or given up. key={self._key}")

    def _check_absent(self) -> None:
        try:
            self._objects.stat(self._key)
        except FileNotFoundError:
            return
        raise ConflictError(
            f"there is an object of this name already. key={self._key}", code="K306"
        )


def put_once(objects: ObjectPlace, key: str, data: bytes) -> None:
    """Write an object where there is none, or find that it is there; ConflictError for another.

    An answer that was lost and asked for again looks as if another writer had been first.
    """
    if objects.put_new(key, data):
        return
    if bytes(objects.read_range(key, 0, len(data) + 1)) != data:
        raise ConflictError(f"there is another object of this name already. key={key}", code="K306")
