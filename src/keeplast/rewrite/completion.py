"""Outputs that are more than their files: of places where a segment is described as a whole.

In a directory a staged file is what it will be. Elsewhere others read a segment by a description
that can only be written when all of it is there, range included: whoever keeps such segments gives
a task files that complete each group's outputs before they are checked, so that the check reads
what readers will.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from keeplast.log.files import FileSystem
from keeplast.log.throttle import ThrottledFiles
from keeplast.rewrite.task import StagedGroup


@runtime_checkable
class CompletesOutputs(Protocol):
    """Files whose outputs have to be completed; errors are those of a task."""

    def complete(self, outputs: Sequence[StagedGroup]) -> None:
        """Complete the outputs of one group; those without files stay as they are."""
        ...


def complete_outputs(files: FileSystem, outputs: Sequence[StagedGroup]) -> None:
    """Complete what was staged of a group, where its files ask for that."""
    below = files.inner if isinstance(files, ThrottledFiles) else files
    if isinstance(below, CompletesOutputs):
        below.complete(outputs)
