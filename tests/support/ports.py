"""Ports on loopback for servers of tests, chosen once and kept over restarts.

They lie below those that the system gives to whoever connects: such a port is taken by any client
while its server is down, even by one that tries to reach that very server.
"""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOWEST = 15_000
RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
TRIES = 1000
_dice = random.Random()
_given: set[int] = set()


def free_port() -> int:
    """Return a port that nobody listens on now, another one at each call."""
    for _ in range(TRIES):
        port = _dice.randrange(LOWEST, _end())
        if port in _given:
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


def _end() -> int:
    """Return the first port that the system gives to clients."""
    try:
        first = int(RANGE.read_text().split()[0])
    except OSError:
        first = 32_768
    return first if first > LOWEST + TRIES else 1 << 16
