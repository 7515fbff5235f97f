"""Has a plan say of aborted transactions what the log's markers say, once anybody needs to know.

A survey does not read a log, so its plan has what the transaction indexes say, and those may lag
the log where a host was killed, or be gone or another's: a round that believed them would take an
aborted record for its key's last. So at the first batch of a transaction or of a marker that a
round meets, the headers of the log are read once more, all of them: what the clean section holds
of a transaction decides, too. A log without transactions has no such batch, and is not read for it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from keeplast.cleaner.plan import RoundPlan
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import find_tail, list_partition
from keeplast.log.transactions import aborted_by_segment
from keeplast.log.windows import WindowBuffers


class MarkersNeededError(Exception):
    """A batch of a transaction was met where nobody can ask the markers. Nothing is left."""


class MarkedPlan:
    """The plan of a round in one process; ``plan`` is told of aborted transactions by :meth:`ask`.

    Any wave may be the first to ask: those before it met no transactions, so that what they put in
    place says of them what was there before.
    """

    __slots__ = ("_files", "_path", "_progressed", "plan")

    def __init__(
        self, plan: RoundPlan, path: Path, files: FileSystem, progressed: Callable[[int], None]
    ) -> None:
        """Begin with what is known; ``progressed`` hears that work goes on."""
        self.plan = plan
        self._path = path
        self._files = files
        self._progressed = progressed

    def ask(self) -> RoundPlan:
        """Return the plan with the aborted transactions of the log as it is; reads it once.

        CorruptError where a batch or a marker cannot be read.
        """
        if self.plan.aborted is None:
            listing = list_partition(self._path, self._files)
            aborted = []
            # What lies behind the round is looked at as far as it decides what lies in it.
            for segment, entries in aborted_by_segment(
                listing, find_tail(listing, self._files), self._files,
                WindowBuffers(), deciding=self.plan.bound,
            ):  # fmt: skip
                aborted.append((segment.base_offset, entries))
                self._progressed(0)
            self.plan = replace(self.plan, aborted=tuple(aborted))
        return self.plan
