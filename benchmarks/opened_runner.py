"""The runner of a process under measurement: threads, or Spark on the same host."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from keeplast.log.files import FileSystem
from keeplast.rewrite.task import Runner
from keeplast.run.local_runner import LocalRunner


@contextmanager
def opened_runner(name: str, cores: int, files: FileSystem | None = None) -> Iterator[Runner]:
    """Yield the runner ``local`` or ``spark`` with ``cores``; threads work on ``files``."""
    if name == "local":
        with LocalRunner(cores, files=files) as local:
            yield local
        return
    # Spark is imported by who uses it.
    from keeplast.pipeline.runner import SparkRunner

    with SparkRunner(None, cores) as spark:
        yield spark
