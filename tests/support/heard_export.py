"""Events of an export that are kept."""

from __future__ import annotations


class HeardExport:
    """What an export said: its notes in order, and how many bytes it planned and read."""

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.planned_bytes = self.read_bytes = 0

    def noted(self, message: str) -> None:
        self.notes.append(message)

    def planned(self, total_bytes: int) -> None:
        self.planned_bytes += total_bytes

    def progressed(self, read_bytes: int) -> None:
        self.read_bytes += read_bytes
