"""Says whether spark-submit started this process, without pyspark, so that any command may ask.

spark-submit has then started the JVM, with the master and all else that it was given.
"""

from __future__ import annotations

import os

GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"
"""Where the JVM of spark-submit listens; Spark's ``PythonRunner`` sets it for the driver alone."""


def is_submitted() -> bool:
    """Return whether spark-submit started this process as a driver."""
    return GATEWAY_PORT in os.environ
