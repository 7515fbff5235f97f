"""The thread that renews the leases of a process's hosts, however long a round takes.

What a reader must not break: it renews and nothing else. A process that is stopped renews nothing,
and neither does one that cannot reach the store; both are overtaken, and fenced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Self

from keeplast.host.leased_host import LeasedHost


class LeaseKeeper:
    """Renews every ``seconds`` while it is entered. ``hosts`` returns those of that moment."""

    def __init__(self, hosts: Callable[[], Iterable[LeasedHost]], seconds: float) -> None:
        """Renew nothing yet."""
        self._hosts = hosts
        self._seconds = seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeplast-lease", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.wait(self._seconds):
            for host in self._hosts():
                host.renew()
