"""An object store that remembers what was read and written, by key."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from keeplast.tier.objects.object_store import ObjectStore, ObjectWriter, StoredObject


class CountingObjects:
    """Passes everything on to another store."""

    def __init__(self, objects: ObjectStore) -> None:
        self._objects = objects
        self.requests = 0
        self.read: Counter[str] = Counter()
        self.written: Counter[str] = Counter()

    def forget(self) -> None:
        """Start counting again."""
        self.requests = 0
        self.read.clear()
        self.written.clear()

    def read_range(self, key: str, start: int, end: int) -> memoryview:
        """Read and count."""
        data = self._objects.read_range(key, start, end)
        self.requests += 1
        self.read[key] += len(data)
        return data

    def stat(self, key: str) -> StoredObject:
        """Ask and count."""
        self.requests += 1
        return self._objects.stat(key)

    def open_write(self, key: str) -> ObjectWriter:
        """Start an object whose bytes are counted."""
        self.requests += 1
        return _CountingWriter(self._objects.open_write(key), self.written, key)

    def list(self, prefix: str) -> Iterator[StoredObject]:
        """Pass on."""
        return self._objects.list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        """Pass on."""
        self._objects.delete(keys)


class _CountingWriter:
    def __init__(self, writer: ObjectWriter, written: Counter[str], key: str) -> None:
        self._writer = writer
        self._written = written
        self._key = key

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._writer.write(data)
        self._written[self._key] += len(data)

    def close(self) -> None:
        self._writer.close()

    def abort(self) -> None:
        self._writer.abort()
