"""Ports on loopback for servers of tests, chosen once and kept over restarts.

They lie below those that the system gives to connecting clients: such a port is taken by any client
while its server is down, even by one that tries to reach that very server. Of several processes
that run tests each has ports of its own, for the same reason.
"""

from __future__ import annotations

import os
import random
import socket
from pathlib import Path

LOWEST = 15_000
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
TRIES = 1000
_dice = random.Random()
_given: set[int] = set()


def free_port() -> int:
    """Return a port without a listener now, another one at each call."""
    for _ in range(TRIES):
        port = _dice.randrange(LOWEST, _end())
        if port in _given or not _is_ours(port):
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        _given.add(port)
        return port
    raise RuntimeError(f"no port is free on loopback. from={LOWEST} to={_end()}")


def _is_ours(port: int) -> bool:
    """Say whether a port is one of this process, of those that pytest-xdist runs side by side."""
    count = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    return port % count == int(number) % count


def _end() -> int:
    """Return the first port that the system gives to clients."""
    try:
        first = int(RANGE.read_text().split()[0])
    except OSError:
        first = 32_768
    return first if first > LOWEST + TRIES else 1 << 16
