"""The file systems that a process has opened for its tasks: one a round, a few rounds kept.

Units of one round that meet in a process share what it has learned and its connections.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from keeplast.log.files import FileSystem
from keeplast.rewrite.task import PartitionTask

ROUNDS_KEPT = 16


class OpenedFiles:
    """Opens by recipe; several threads may ask at once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened: OrderedDict[str, FileSystem] = OrderedDict()

    def of(self, task: PartitionTask) -> FileSystem:
        """Return the file system of the round that ``task`` is part of."""
        with self._lock:
            files = self._opened.get(task.attempt)
            if files is None:
                files = self._opened[task.attempt] = task.files.open()
            self._opened.move_to_end(task.attempt)
            while len(self._opened) > ROUNDS_KEPT:
                self._opened.popitem(last=False)
            return files
