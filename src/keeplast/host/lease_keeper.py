"""The thread that renews the leases of a process's hosts, however long a round takes.

What a reader must not break: it renews and nothing else. A process that is stopped renews nothing,
and neither does one that cannot reach the store; both are overtaken, and fenced.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from keeplast.host.leased_host import LeasedHost

RENEWALS = 3
"""A leader renews its lease so often within its time: two lost renewals end nothing."""


@contextmanager
def renewing(hosts: Callable[[], Iterable[LeasedHost]], lease_ms: int) -> Iterator[None]:
    """Renew leases of ``lease_ms`` meanwhile; ``hosts`` returns those of that moment."""
    ended = threading.Event()

    def renew_all() -> None:
        while not ended.wait(lease_ms / 1000 / RENEWALS):
            for host in hosts():
                host.renew()

    thread = threading.Thread(target=renew_all, name="keeplast-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
