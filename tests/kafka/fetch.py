"""``python -m tests.kafka.fetch``: all of Kafka that its tests run on, before any of them begins.

Processes that run tests side by side would each have Maven fetch the same, and Maven's local
repository is not made for two.
"""

from __future__ import annotations

from tests.kafka.broker import VERSIONS, broker_libs
from tests.kafka.oracle.driver import Oracle


def main() -> None:
    """Fetch the jars of each broker, and those of the referee, which is compiled and started."""
    for version in VERSIONS:
        broker_libs(version)
    with Oracle():
        pass


if __name__ == "__main__":
    main()
