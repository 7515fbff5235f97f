"""``keeplast`` as a driver of its own that meets a fault; run as a module.

The environment names the fault, of tasks (:mod:`tests.support.cluster_faults`) or of the commit.
The arguments are those of the command line.
"""

from __future__ import annotations

import os
import signal
from enum import StrEnum
from pathlib import Path

import pytest

import keeplast.log.files
from keeplast.cli.main import main
from keeplast.format.filename import CLEANED, CLEANER_CHECKPOINT, DELETED, SWAP
from keeplast.log.files import Buffer, LocalFiles
from tests.support.cluster_faults import Act, Fault, Moment, Stage, inject

FAULT = "CLUSTER_FAULT"
"""``stage moment act scratch``."""

KILL = "CLUSTER_KILL"
"""``step number``: the driver dies before the operation of that number of the step, from 0."""


class Step(StrEnum):
    """The steps of a commit, by their first operation.

    Source: docs/contributing/design/commit-and-recovery.md.

    Where every segment is a group of its own, as here, no snapshot loses its segment.
    """

    ANNOUNCE = "announce"
    DECIDE = "decide"
    RETIRE = "retire"
    INSTALL = "install"
    REMOVE = "remove"
    CHECKPOINT = "checkpoint"
    END = "end"


class MortalFiles(LocalFiles):
    """Files whose process dies at a step of the commit."""

    def __init__(self) -> None:
        """Read from the environment when to die."""
        super().__init__()
        step, _, number = os.environ[KILL].rpartition(" ")
        self._step, self._left = Step(step), int(number)

    def rename(self, source: Path, target: Path) -> None:
        """Rename, or die."""
        if target.name.endswith(CLEANED):
            self._at(Step.ANNOUNCE)
        elif target.name.endswith(SWAP):
            self._at(Step.DECIDE)
        elif target.name.endswith(DELETED):
            self._at(Step.RETIRE)
        elif source.name.endswith(SWAP):
            self._at(Step.INSTALL)
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        """Remove, or die."""
        if path.name.endswith(DELETED):
            self._at(Step.REMOVE)
        super().unlink(path)

    def write_durable(self, path: Path, data: Buffer) -> None:
        """Write a checkpoint, or die before or behind it."""
        if path.name == CLEANER_CHECKPOINT:
            self._at(Step.CHECKPOINT)
        super().write_durable(path, data)
        if path.name == CLEANER_CHECKPOINT:
            self._at(Step.END)

    def _at(self, step: Step) -> None:
        if step is self._step:
            if self._left == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            self._left -= 1


def inject_from_environment(patch: pytest.MonkeyPatch) -> None:
    """Let tasks meet the fault that the environment names, if it names one."""
    if FAULT in os.environ:
        stage, moment, act, scratch = os.environ[FAULT].split(" ", 3)
        inject(patch, Fault(Stage(stage), Moment(moment), Act(act), Path(scratch)))


def run() -> None:
    """Run the command line with what the environment names."""
    with pytest.MonkeyPatch.context() as patch:
        inject_from_environment(patch)
        if KILL in os.environ:
            patch.setattr(keeplast.log.files, "LocalFiles", MortalFiles)
        main()


if __name__ == "__main__":
    run()
