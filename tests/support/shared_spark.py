"""One Spark session for all tests of a process, on two cores of this machine.

What a session costs is the start of its Python workers, which load every kernel. While it is
shared, who asks Spark for a session gets this one, and who leaves one behind, as a command
does, ends it for no other test. A test that needs another master, or a session's real end, ends it
first.
"""

from __future__ import annotations

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

import keeplast
from keeplast.pipeline.runner import SparkRunner, start_session

CORES = 2


def _go_on(session: SparkSession | SparkContext) -> None:
    """Let a session be that others use."""


class SharedSpark:
    """The session, begun when somebody needs it."""

    def __init__(self) -> None:
        """Begin nothing."""
        self._session: SparkSession | None = None
        self._patch = pytest.MonkeyPatch()

    def session(self) -> SparkSession:
        """Return a session with settings and views of its own, which knows the data source."""
        made = self._shared().newSession()
        made.conf.set("spark.sql.shuffle.partitions", "2")
        made.conf.set("spark.sql.session.timeZone", "UTC")
        keeplast.register(made)
        return made

    def runner(self) -> SparkRunner:
        """Return a runner of the session."""
        self._shared()
        return SparkRunner(cores=CORES)

    def end(self) -> None:
        """End the session; the next who needs one begins another."""
        self._patch.undo()
        if self._session is not None:
            self._session.stop()
            self._session = None

    def _shared(self) -> SparkSession:
        if self._session is None:
            self._session = SparkSession(start_session(f"local[{CORES}]", CORES))
            self._patch.setattr(SparkSession, "stop", _go_on)
            self._patch.setattr(SparkContext, "stop", _go_on)
        return self._session
