"""An object store that stops the program before one of its changes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from keeplast.tier.objects.object_store import ObjectTree, ObjectWriter, StoredObject


class Crash(BaseException):
    """The end of the process, as far as a test can have one."""


class CrashingTree:
    """Passes everything on, until the change number ``at``: from there on nothing happens."""

    def __init__(self, inner: ObjectTree, at: int | None = None) -> None:
        self._inner = inner
        self._at = at
        self.changes = 0

    def _change(self) -> None:
        if self._at is not None and self.changes >= self._at:
            raise Crash
        self.changes += 1

    def read_range(self, key: str, start: int, end: int) -> memoryview:
        return self._inner.read_range(key, start, end)

    def stat(self, key: str) -> StoredObject:
        return self._inner.stat(key)

    def open_write(self, key: str) -> ObjectWriter:
        return _Writer(self, self._inner.open_write(key))

    def list(self, prefix: str) -> Iterator[StoredObject]:
        return self._inner.list(prefix)

    def delete(self, keys: Iterable[str]) -> None:
        self._change()
        self._inner.delete(keys)

    def children(self, prefix: str) -> tuple[tuple[StoredObject, ...], tuple[str, ...]]:
        return self._inner.children(prefix)

    def copy(self, source: str, target: str) -> None:
        self._change()
        self._inner.copy(source, target)


class _Writer:
    def __init__(self, tree: CrashingTree, inner: ObjectWriter) -> None:
        self._tree = tree
        self._inner = inner

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._inner.write(data)

    def close(self) -> None:
        self._tree._change()
        self._inner.close()

    def abort(self) -> None:
        self._inner.abort()
