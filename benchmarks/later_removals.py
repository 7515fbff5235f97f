"""What a cleaner replaced is removed after the clock has stopped, on every side alike."""

from __future__ import annotations

from pathlib import Path

from keeplast.log.files import LocalFiles

RETIRED = ".deleted"


class LaterRemovals(LocalFiles):
    """The file system, but replaced files stay until :meth:`remove`.

    Kafka leaves them to a timer, outside of what it measures and of what is measured here.
    """

    def __init__(self) -> None:
        """Start with nothing to remove."""
        self._waiting: dict[Path, None] = {}

    def unlink(self, path: Path) -> None:
        """Remove a name, later when it is that of a replaced file."""
        if path.name.endswith(RETIRED) and self.exists(path):
            self._waiting[path] = None
        else:
            super().unlink(path)

    def remove(self) -> None:
        """Remove what waits."""
        for path in self._waiting:
            path.unlink(missing_ok=True)
        self._waiting.clear()
