"""``python -m tests.kafka.fetch``: all of Kafka that its tests run on, before any of them begins.

Processes that run tests side by side would each have Maven fetch the same, and Maven's local
repository is not made for two.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.kafka.broker import VERSIONS, Broker, broker_libs, class_archive
from tests.kafka.oracle.driver import Oracle


def main() -> None:
    """Fetch the jars of each broker, and those of the referee, which is compiled and started.

    A broker that ends leaves an archive of its classes; a Java that makes none goes on without.
    """
    for version in VERSIONS:
        broker_libs(version)
        if not class_archive(version).exists():
            with tempfile.TemporaryDirectory() as root:
                made = Path(root) / "made.jsa"
                with Broker(
                    version, Path(root), options=(f"-XX:ArchiveClassesAtExit={made}",)
                ) as broker:
                    broker.stop()
                if made.exists():
                    shutil.move(made, class_archive(version))
    with Oracle():
        pass


if __name__ == "__main__":
    main()
