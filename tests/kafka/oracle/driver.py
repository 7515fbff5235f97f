"""Talks to Kafka's own classes: finds or fetches the jars, compiles the driver, keeps one JVM.

A request is one JSON object on a line and so is its answer (README.md next to this file lists
them). Answers come in the order of the requests; an answer with ``ok`` false carries ``error`` and
``trace`` and does not end the JVM.

``KAFKA_LIBS`` names a directory that already holds the jars; otherwise Maven fetches them once
into ``build/``.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tests.kafka.jars import BUILD, fetch_jars

KAFKA_VERSION = "4.3.0"
HERE = Path(__file__).resolve().parent
SOURCES = ("CleanOracle.java", "LogWriter.java", "LogDump.java", "LogAccept.java", "LogExpire.java")
MANY_SMALL_LOGS = ("-Xmx1g", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
"""Quick to start and frugal. Never for measurements: the server compiler is off."""
LIKE_A_BROKER = (
    "-Xms2g",
    "-Xmx4g",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
)
"""What Kafka's start script gives a broker, with room for the key map."""

Json = dict[str, Any]


class OracleError(Exception):
    """The referee could not be started or did not answer."""


def kafka_libs() -> Path:
    """Return a directory with Kafka's jars, fetching them with Maven when there is none yet."""
    given = os.environ.get("KAFKA_LIBS")
    if given:
        libs = Path(given)
        if not any(libs.glob("kafka-storage-*.jar")):
            raise OracleError(f"no Kafka jars in KAFKA_LIBS. path={libs}")
        return libs
    return fetch_jars(
        HERE / "pom.xml",
        f"kafka-{KAFKA_VERSION}",
        remedy=f"set KAFKA_LIBS to a directory with the jars of Kafka {KAFKA_VERSION}",
    )


def _compiled_classes(libs: Path) -> Path:
    """Return a directory with the compiled driver; its name follows from sources and jars."""
    digest = hashlib.sha256(str(libs).encode())
    for name in SOURCES:
        digest.update((HERE / name).read_bytes())
    classes = BUILD / f"oracle-{digest.hexdigest()[:16]}"
    if classes.is_dir():
        return classes
    if shutil.which("javac") is None:
        raise OracleError("javac is missing: install a JDK 17 or later (package openjdk-17-jdk)")
    BUILD.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=BUILD, prefix="oracle-compile-") as scratch:
        target = Path(scratch) / "classes"
        target.mkdir()
        sources = [str(HERE / name) for name in SOURCES]
        subprocess.run(
            ["javac", "-nowarn", "-Xlint:none", "-d", str(target), "-cp", f"{libs}/*", *sources],
            check=True,
            capture_output=True,
        )
        (target / "log4j2.xml").write_text(
            '<Configuration><Loggers><Root level="OFF"/></Loggers></Configuration>\n'
        )
        try:
            target.rename(classes)
        except OSError:
            # Another process was first.
            if not classes.is_dir():
                raise
    return classes


class Oracle:
    """One JVM that answers requests. A context manager; leaving it ends the JVM."""

    def __init__(self, java_options: Iterable[str] = MANY_SMALL_LOGS) -> None:
        """Start the JVM with ``java_options``."""
        if shutil.which("java") is None:
            raise OracleError("java is missing: install Java 17 or later (package openjdk-17-jdk)")
        libs = kafka_libs()
        classes = _compiled_classes(libs)
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115  closed in close()
        self._process = subprocess.Popen(
            [
                "java",
                *java_options,
                f"-Dlog4j2.configurationFile={classes}/log4j2.xml",
                "-cp",
                f"{classes}:{libs}/*",
                "CleanOracle",
                "--batch",
                "-",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    @property
    def process_id(self) -> int:
        """Return the JVM's process."""
        return self._process.pid

    def ask(self, request: Json) -> Json:
        """Return the answer to ``request``, be it ``ok`` or not."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line:
            self._process.wait()
            self._errors.seek(0)
            raise OracleError(f"the referee's JVM ended: {self._errors.read()[-2000:]}")
        answer: Json = json.loads(line)
        return answer

    def demand(self, request: Json) -> Json:
        """Return the answer to ``request``; raise :class:`OracleError` when it is not ``ok``."""
        answer = self.ask(request)
        if not answer["ok"]:
            raise OracleError(f"{request.get('op')}: {answer.get('error')} {answer.get('trace')}")
        return answer

    def close(self) -> None:
        """End the JVM."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def __enter__(self) -> Self:
        """Return the running oracle."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the JVM."""
        self.close()
