"""One KRaft broker of a given Kafka version on the loopback interface, for tests.

Ports are chosen once and kept over restarts, so that clients reconnect. The broker is ended by the
process that was started here and by nothing else. Its own log is ``server.log`` in its root; the
data directory is ``data``.

``KAFKA_HOMES`` may name directories that hold the jars already, as ``VERSION=DIRECTORY`` pairs
separated like a search path; otherwise Maven fetches them once into ``build/``.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.kafka.jars import BUILD, fetch_jars
from tests.support.ports import free_port
from tests.support.waiting import SECONDS_MAX, wait_until

ENDING_SECONDS = SECONDS_MAX + 60
"""A broker whose controllers have ended before it waits five minutes for an answer of theirs
(Kafka's ``BrokerServer.shutdown``); several that are stopped at once may leave one to that."""
HERE = Path(__file__).resolve().parent
VERSIONS = ("3.9.1", "4.3.0")
PARTITIONS = 3
"""Of the metadata topic."""
CLUSTER_ID = "MkU3OEVBNTcwNTJENDM2Qg"
HEAP = "-Xmx384m"
QUICK_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")

PROPERTIES = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "inter.broker.listener.name": "PLAINTEXT",
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "offsets.topic.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
    "broker.heartbeat.interval.ms": "300",
    "broker.session.timeout.ms": "2000",
    "num.network.threads": "1",
    "num.io.threads": "2",
    "log.cleaner.backoff.ms": "200",
    "log.cleaner.dedupe.buffer.size": "8388608",
}

_LINE = re.compile(r"\[[^\]]*\] (TRACE|DEBUG|INFO|WARN|ERROR|FATAL) (.*)")


class BrokerError(Exception):
    """The broker did not start, or did not stop."""


def broker_libs(version: str) -> Path:
    """Return the directory with the jars that a broker of ``version`` runs on."""
    for pair in filter(None, os.environ.get("KAFKA_HOMES", "").split(os.pathsep)):
        name, _, directory = pair.partition("=")
        if name == version:
            libs = Path(directory) / "libs"
            return libs if libs.is_dir() else Path(directory)
    return fetch_jars(
        HERE / f"kafka-{version}.pom.xml",
        f"broker-{version}",
        remedy=f"set KAFKA_HOMES to {version}=DIRECTORY with its jars",
    )


def class_archive(version: str) -> Path:
    """Return where the classes of a broker of ``version`` are kept as Java maps them: the archive
    halves what a start costs. :mod:`tests.kafka.fetch` makes it; Java goes without one that is
    missing, or of another Java.
    """
    return BUILD / f"broker-{version}.jsa"


class Broker:
    """A broker that can be started and ended again and again over the same directory."""

    def __init__(
        self, version: str, root: Path, properties: Mapping[str, str] | None = None, *,
        classes: Path | None = None, options: Sequence[str] = (),
    ) -> None:  # fmt: skip
        """Choose ports; nothing runs yet. ``root/data`` may exist already.

        ``classes`` are more than its jars have: a plugin of a test's own. ``options`` are more of
        its JVM's, as an agent is, while it serves.
        """
        if shutil.which("java") is None:
            raise BrokerError("java is missing: install Java 17 or later")
        self.version = version
        self.root = root
        self.data = root / "data"
        self.port = free_port()
        self._controller_port = free_port()
        self._extra = dict(properties or {})
        self._classes = classes
        self._options = tuple(options)
        self._process: subprocess.Popen[bytes] | None = None
        self._log = root / "server.log"
        self._log_start = 0

    @property
    def address(self) -> str:
        """What clients bootstrap from."""
        return f"127.0.0.1:{self.port}"

    @property
    def controller(self) -> str:
        """Where the other controllers of its cluster find it."""
        return f"127.0.0.1:{self._controller_port}"

    def configure(self, properties: Mapping[str, str]) -> None:
        """Add settings that count from the next start on."""
        self._extra.update(properties)

    def start(self) -> None:
        """Start and return when the broker answers; formats the directory the first time."""
        self.root.mkdir(parents=True, exist_ok=True)
        config = self._write_properties()
        if not (self.data / "meta.properties").exists():
            done = subprocess.run(
                [
                    *self._java(),
                    "kafka.tools.StorageTool",
                    "format",
                    "-t",
                    CLUSTER_ID,
                    "-c",
                    config,
                ],
                capture_output=True,
                text=True,
                check=False,
            )
            if done.returncode != 0:
                raise BrokerError(f"cannot format: {done.stdout}{done.stderr}")
        self._log_start = self._log.stat().st_size if self._log.exists() else 0
        with (self.root / "out.log").open("ab") as out:
            self._process = subprocess.Popen(
                [*self._java(*self._options), "kafka.Kafka", config], stdout=out, stderr=out
            )
        process, node = self._process, (PROPERTIES | self._extra)["node.id"]
        started = f"[KafkaRaftServer nodeId={node}] Kafka Server started"
        try:
            wait_until(
                lambda: started in self._text(),
                by=lambda: process.poll() is None,
                words=lambda: (self.root / "out.log").read_text()[-2000:] + self._text()[-2000:],
            )
        except AssertionError as error:
            self.kill()
            raise BrokerError(f"broker {self.version} did not start") from error

    def stop(self) -> None:
        """End cleanly: logs are flushed and marked so."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End as a crash does."""
        self._end(signal.SIGKILL)

    def freeze(self) -> None:
        """Let it give no answer, and keep its connections, until :meth:`thaw`."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on, with everything that it believed."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def resident_bytes(self) -> int:
        """Return what the process has in memory, 0 for one that does not run."""
        if self._process is None:
            return 0
        pages = Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def lines(self, *levels: str) -> list[str]:
        """Return what the broker logged since it was last started, without times."""
        found = (_LINE.match(line) for line in self._text().splitlines())
        return [match[2] for match in found if match is not None and match[1] in levels]

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End, however."""
        self.kill()

    def _end(self, how: signal.Signals) -> None:
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(ENDING_SECONDS)
        except subprocess.TimeoutExpired as error:
            self._process.kill()
            self._process.wait()
            raise BrokerError(f"broker did not end. signal={how.name}") from error
        finally:
            self._process = None

    def _text(self) -> str:
        if not self._log.exists():
            return ""
        with self._log.open("rb") as log:
            log.seek(self._log_start)
            return log.read().decode(errors="replace")

    def _java(self, *options: str) -> list[str]:
        if self.version.startswith("3"):
            logging = f"-Dlog4j.configuration=file:{self.root / 'log4j.properties'}"
        else:
            logging = f"-Dlog4j2.configurationFile={self.root / 'log4j2.xml'}"
        more = () if self._classes is None else (str(self._classes),)
        path = os.pathsep.join((f"{broker_libs(self.version)}/*", *more))
        archive = class_archive(self.version)
        shared = (f"-XX:SharedArchiveFile={archive}",) if archive.exists() else ()
        return ["java", HEAP, *QUICK_START, *shared, *options, logging, "-cp", path]

    def _write_properties(self) -> str:
        settings = {
            **PROPERTIES,
            "listeners": f"PLAINTEXT://{self.address},CONTROLLER://{self.controller}",
            "advertised.listeners": f"PLAINTEXT://{self.address}",
            "controller.quorum.voters": f"1@{self.controller}",
            "log.dirs": str(self.data),
            **self._extra,
        }
        config = self.root / "server.properties"
        config.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        (self.root / "log4j.properties").write_text(
            "log4j.rootLogger=INFO, file\n"
            "log4j.appender.file=org.apache.log4j.FileAppender\n"
            f"log4j.appender.file.File={self._log}\n"
            "log4j.appender.file.layout=org.apache.log4j.PatternLayout\n"
            "log4j.appender.file.layout.ConversionPattern=[%d] %p %m (%c)%n\n"
        )
        (self.root / "log4j2.xml").write_text(
            f'<Configuration><Appenders><File name="file" fileName="{self._log}">'
            '<PatternLayout pattern="[%d] %p %m (%c)%n"/></File></Appenders>'
            '<Loggers><Root level="INFO"><AppenderRef ref="file"/></Root></Loggers>'
            "</Configuration>\n"
        )
        return str(config)


def tier_settings(version: str, root: Path) -> dict[str, str]:
    """Return what gives a broker a remote tier, in ``root/remote``; its own cleaner is off."""
    settings = {
        "log.cleaner.enable": "false",
        "log.initial.task.delay.ms": "500",
        "log.retention.check.interval.ms": "500",
        "remote.log.storage.system.enable": "true",
        "remote.log.metadata.manager.class.name": "org.apache.kafka.server.log.remote.metadata."
        "storage.TopicBasedRemoteLogMetadataManager",
        "remote.log.metadata.manager.listener.name": "PLAINTEXT",
        "remote.log.metadata.manager.impl.prefix": "rlmm.config.",
        "remote.log.storage.manager.impl.prefix": "rsm.config.",
        "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage."
        "LocalTieredStorage",
        "rsm.config.dir": str(root / "remote"),
        "rsm.config.delete.on.close": "false",
        "remote.log.manager.task.interval.ms": "500",
        "rlmm.config.remote.log.metadata.topic.replication.factor": "1",
        "rlmm.config.remote.log.metadata.topic.num.partitions": str(PARTITIONS),
        "rlmm.config.remote.log.metadata.initialization.retry.interval.ms": "300",
    }
    if version.startswith("4"):
        settings["rlmm.config.remote.log.metadata.topic.min.isr"] = "1"
    return settings


def tiered_broker(
    version: str, root: Path, more: Mapping[str, str] | None = None, *,
    classes: Path | None = None, options: Sequence[str] = (),
) -> Broker:  # fmt: skip
    """Return a broker with a remote tier, and ``more`` settings; see :class:`Broker`."""
    settings = tier_settings(version, root) | dict(more or {})
    return Broker(version, root, settings, classes=classes, options=options)
