"""An object store of which one request fails, or stores something else than it was given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from keeplast.errors import UnavailableError
from keeplast.tier.objects.object_store import ObjectStore, ObjectWriter, StoredObject

REQUESTS = ("read", "stat", "open", "write", "close")


class FaultyObjects:
    """Passes on; the ``nth`` request of a kind fails when it was asked for, once."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self._kind = ""
        self._left = 0
        self.loses_bytes = False
        self.failed = 0
        self.seen = dict.fromkeys((*REQUESTS, "list", "delete"), 0)

    def fail(self, kind: str, nth: int) -> None:
        """Let the ``nth`` request of ``kind`` from now on fail."""
        self._kind, self._left, self.failed = kind, nth, 0

    def forget(self) -> None:
        """Fail no more, and count again."""
        self._left = 0
        self.seen = dict.fromkeys(self.seen, 0)

    def _reach(self, kind: str) -> None:
        self.seen[kind] += 1
        if kind == self._kind and self._left:
            self._left -= 1
            if not self._left:
                self.failed += 1
                raise UnavailableError(f"the object store is away. request={kind}")

    def read_range(self, key: str, start: int, end: int) -> memoryview:
        self._reach("read")
        return self._objects.read_range(key, start, end)

    def stat(self, key: str) -> StoredObject:
        self._reach("stat")
        return self._objects.stat(key)

    def open_write(self, key: str) -> ObjectWriter:
        self._reach("open")
        return _FaultyWriter(self._objects.open_write(key), self)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        self._reach("list")
        return self._objects.list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._reach("delete")
            self._objects.delete([key])


class _FaultyWriter:
    def __init__(self, writer: ObjectWriter, store: FaultyObjects) -> None:
        self._writer = writer
        self._store = store

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._store._reach("write")
        self._writer.write(data[:-1] if self._store.loses_bytes else data)

    def close(self) -> None:
        self._store._reach("close")
        self._writer.close()

    def abort(self) -> None:
        self._writer.abort()
