"""``keeplast`` as processes that begin at once: forked from one that has imported it all.

Each is a process of its own, which a signal ends as it ends any other; what it says is in a file.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from keeplast.cli.main import main
from tests.support import attach_driver
from tests.support.attach_driver import STEP, Act, Step

_MODULES = (
    "keeplast.cli.clean", "keeplast.api.attached_logs", "keeplast.attach.rounds.round",
    "keeplast.run.local_runner",
    "keeplast.tier.metadata.decisions", "keeplast.cluster.client", "confluent_kafka.admin",
    __name__,
)  # fmt: skip
_FORKING = multiprocessing.get_context("forkserver")
_FORKING.set_forkserver_preload(list(_MODULES))


class AttachProcess:
    """One command; ``met`` is the step at which it gets the signal of the act, if any."""

    def __init__(
        self, arguments: list[str], said: Path, met: tuple[Step, Act] | None = None
    ) -> None:
        """Begin; ``said`` is written again, and what stands next to it with ``.err``."""
        self._said, self._errors = said, said.with_name(f"{said.name}.err")
        self._process: ForkServerProcess = _FORKING.Process(
            target=_run,
            args=(arguments, str(said), str(self._errors), met and f"{met[0]} {met[1]}"),
        )
        self._process.start()

    @property
    def process_id(self) -> int:
        """Return the process's id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def is_stopped(self) -> bool:
        """Return whether it is frozen."""
        state = Path(f"/proc/{self.process_id}/stat").read_text()
        return state.rpartition(")")[2].split()[0] == "T"

    @property
    def is_alive(self) -> bool:
        """Return whether it has not ended."""
        return self._process.is_alive()

    def wake(self) -> None:
        """Let it go on."""
        os.kill(self.process_id, signal.SIGCONT)

    def wait(self, seconds: float) -> int:
        """Return its exit code, less than 0 for a signal; one that hangs is an AssertionError."""
        self._process.join(seconds)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
            self._process.join()
            raise AssertionError(f"a command hangs. {self.output()}")
        return code

    def output(self) -> str:
        """Return what it said."""
        return self._said.read_text() + self._errors.read_text()

    def document(self) -> dict[str, Any]:
        """Return its JSON."""
        found: dict[str, Any] = json.loads(self._said.read_text())
        return found


def _run(arguments: list[str], said: str, errors: str, met: str | None) -> None:
    for place, number in ((said, 1), (errors, 2)):
        with open(place, "wb") as file:
            os.dup2(file.fileno(), number)
    sys.argv = ["keeplast", *arguments]
    if met is None:
        main()
    else:
        os.environ[STEP] = met
        attach_driver.run()
