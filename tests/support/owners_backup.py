"""Backups of a simulated store's metadata, taken between two commands and put back later."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from keeplast.tier.metadata.schema import MARK
from keeplast.tier.objects.object_store import MARKS
from tests.support.tier_world_stores import SimulatedObjects, read_live


class Backup(Struct, frozen=True):
    """All tables as of one moment; ``mark`` is how far the metadata has been by its own word."""

    content: bytes
    mark: int
    is_imported: bool

    def put_back(self, tables: Any) -> None:
        """Let the metadata be what it was."""
        tables.deserialize(self.content)


def back_up(tables: Any, *, is_imported: bool) -> Backup:
    """Copy the metadata, as ``VACUUM INTO`` does."""
    row = tables.execute("SELECT value FROM store WHERE key = ?", (MARK,)).fetchone()
    return Backup(tables.serialize(), 0 if row is None else int(row[0].split()[0]), is_imported)


def placed_mark(objects: SimulatedObjects) -> int:
    """Return how far metadata has been by the place of the objects."""
    return max((int(k.rpartition("/")[2]) for k in objects.found if k.startswith(MARKS)), default=0)


def standing(tables: Any) -> object:
    """Return what a command that is refused has to leave as it is."""
    segments = tables.execute("SELECT id, state FROM segments ORDER BY id").fetchall()
    return read_live(tables), segments
