"""Three brokers of one version that are each other's controllers, on the loopback interface.

All of them are started together, because none is up before two of three can vote; afterwards each
may be stopped and started by itself. Directories are those of ``Broker``, one below the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.kafka.broker import Broker

NODES = (1, 2, 3)


class Cluster:
    """Brokers by their ``node.id``, started on entry and ended, however, on exit."""

    def __init__(
        self, version: str, root: Path, properties: Mapping[str, str] | None = None
    ) -> None:
        """Choose ports; nothing runs yet."""
        self.brokers = {node: Broker(version, root / str(node)) for node in NODES}
        voters = ",".join(f"{node}@{self.brokers[node].controller}" for node in NODES)
        for node, broker in self.brokers.items():
            broker.configure(
                {"node.id": str(node), "controller.quorum.voters": voters, **(properties or {})}
            )

    @property
    def addresses(self) -> str:
        """What clients bootstrap from."""
        return ",".join(broker.address for broker in self.brokers.values())

    def stop(self) -> None:
        """End all of them in order."""
        with ThreadPoolExecutor(len(NODES)) as pool:
            list(pool.map(Broker.stop, self.brokers.values()))

    def __enter__(self) -> Self:
        """Start all of them; those that came up are ended when one did not."""
        try:
            with ThreadPoolExecutor(len(NODES)) as pool:
                list(pool.map(Broker.start, self.brokers.values()))
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End all of them."""
        self._kill()

    def _kill(self) -> None:
        with contextlib.ExitStack() as stack:
            for broker in self.brokers.values():
                stack.callback(broker.kill)
