"""How far brokers have read the metadata topic, by what their JVMs tell in Prometheus's text form.

Kafka has no metric of its own for it. A broker reads the topic by an ordinary consumer
(``ConsumerTask`` of the topic-based metadata manager), so that its JVM has, for each partition of
``__remote_log_metadata`` that is read, the attribute ``records-lag`` of the JMX bean
``kafka.consumer:type=consumer-fetch-manager-metrics,client-id=..,topic=..,partition=..``
(``FetchCollector.fetchRecords``, 3.9 and 4.x). Prometheus's JMX exporter, without rules of its own,
gives it as ``kafka_consumer_consumer_fetch_manager_metrics_records_lag{partition="7",topic=..}``.

The rule: **silence is not zero**. A broker that does not answer, or stopped to read, is behind; and
a partition of which fewer brokers tell than have replicas is not read to its end, for all that is
known. A lag of zero says that a broker has read what was there when it asked last, a moment ago.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, ProxyHandler, build_opener

from keeplast.clock import Clock, SystemClock
from keeplast.cluster.facts import METADATA_TOPIC
from keeplast.errors import InvalidError, UnavailableError, error_text

LAG, LAST_POLL = "records_lag", "last_poll_seconds_ago"
"""How the names of two metrics end, whatever an exporter's rules put before them."""
POLL_SECONDS_MAX = 60
"""A consumer polls ten times a second; one that did not for so long has stopped, or hangs."""
TIMEOUT_SECONDS, ANSWER_SECONDS_MAX = 10, 30
ANSWER_BYTES_MAX = 64 << 20
CHUNK_BYTES = 1 << 16
URLS_MAX = 1_000
_SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)\{(.*)\}\s+(\S+)(?:\s+-?\d+)?\s*\Z")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class MetricSample:
    """One line of an exposition; ``name`` is in lower case."""

    name: str
    labels: dict[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class BrokerMetrics:
    """Where brokers' metrics are asked for: ``urls``, as :func:`metrics_urls` returns them."""

    urls: tuple[str, ...]
    read: Callable[[str], str] | None = None
    """Gives the text behind a URL, UnavailableError when it does not; by default over HTTP."""

    def why_wait(self, partition: int, replicas: int) -> str | None:
        """Return why brokers may not have read ``partition`` to its end, None when they have.

        ``replicas`` of a topic's partition follow it in that partition of the metadata topic.
        """
        told = 0
        for url in self.urls:
            try:
                text = (self.read or read_metrics)(url)
            except UnavailableError as error:
                return f"a broker does not tell how far it is: {error}"
            lag = lag_of(text, partition)
            if lag is None:
                continue
            told += 1
            if lag > 0:
                behind = "has stopped to read" if math.isinf(lag) else f"lacks {lag:.0f} records of"
                return f"a broker {behind} {METADATA_TOPIC}. partition={partition} url={url}"
        if told < max(min(replicas, len(self.urls)), 1):
            return (
                f"fewer brokers tell how far they are in {METADATA_TOPIC} than have a replica; "
                "have each export records-lag of "
                "kafka.consumer:type=consumer-fetch-manager-metrics, or leave --broker-metrics "
                f"out. partition={partition} replicas={replicas} tell={told} of {len(self.urls)}"
            )
        return None


def metrics_urls(given: Sequence[str]) -> tuple[str, ...]:
    """Return the URLs of ``--broker-metrics``, each of which may be several with commas between.

    InvalidError for what is no http or https URL, and for one with a password, which would be
    shown.
    """
    found = [each.strip() for text in given for each in text.split(",")]
    for number, each in enumerate(found, start=1):
        try:
            parts = urlsplit(each)
            is_good = parts.scheme in ("http", "https") and bool(parts.hostname)
            has_secret = parts.username is not None or parts.password is not None
            _ = parts.port
        except ValueError:
            is_good = has_secret = False
        if has_secret:
            raise InvalidError(
                "a URL with a user or a password would be shown to everybody on this host; give "
                f"the metrics a port that needs none. --broker-metrics={number}. of {len(found)}"
            )
        if not is_good:
            raise InvalidError(
                "give http://HOST:PORT/PATH of each broker's metrics, with commas between. "
                f"--broker-metrics={each[:200]}"
            )
    if len(found) > URLS_MAX:
        raise InvalidError(f"give {URLS_MAX} URLs at most. --broker-metrics has {len(found)}")
    return tuple(dict.fromkeys(found))


def lag_of(text: str, partition: int) -> float | None:
    """Return how many records of a partition of the metadata topic a broker still has to read.

    None when it does not tell, as one that has no replica of a topic in it; infinity when the
    consumer that tells has not polled for :data:`POLL_SECONDS_MAX`, or what it tells is no count.
    """
    samples = list(_samples(text))
    found: list[float] = []
    for each in samples:
        asked = (each.labels.get("topic"), each.labels.get("partition"))
        if not each.name.endswith(LAG) or asked != (METADATA_TOPIC, str(partition)):
            continue
        client = each.labels.get("client_id")
        polls = [
            other.value
            for other in samples
            if other.name.endswith(LAST_POLL) and other.labels.get("client_id") == client
        ]
        is_read = all(0 <= seconds <= POLL_SECONDS_MAX for seconds in polls)
        found.append(each.value if is_read and each.value >= 0 else math.inf)
    return max(found, default=None)


def _samples(text: str) -> Iterator[MetricSample]:
    """Yield what is told of lags and polls; other lines, and those that are none, are passed."""
    for line in text.splitlines():
        start = line.partition("{")[0].rstrip().lower()
        if line.startswith("#") or not start.endswith((LAG, LAST_POLL)):
            continue
        match = _SAMPLE.match(line)
        try:
            value = math.nan if match is None else float(match[3])
        except ValueError:
            value = math.nan
        if match is not None:
            yield MetricSample(start, dict(_LABEL.findall(match[2])), value)


class _NoRedirects(HTTPRedirectHandler):
    """Metrics are asked where somebody said, and nowhere else."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow none."""


def read_metrics(url: str, clock: Clock | None = None) -> str:
    """Return the text behind ``url``; UnavailableError when it does not answer, soon, in bounds."""
    seconds = (SystemClock() if clock is None else clock).seconds
    opener, started = build_opener(ProxyHandler({}), _NoRedirects()), seconds()
    data = bytearray()
    try:
        with opener.open(url, timeout=TIMEOUT_SECONDS) as answer:
            while chunk := answer.read1(CHUNK_BYTES):
                data += chunk
                if len(data) > ANSWER_BYTES_MAX or seconds() - started > ANSWER_SECONDS_MAX:
                    raise UnavailableError(
                        "its metrics do not end: is this a broker's JMX exporter? "
                        f"url={url} bytes={len(data)}"
                    )
    except (OSError, HTTPException, ValueError) as error:
        words = error_text(error) if isinstance(error, OSError) else str(error)
        raise UnavailableError(f"its metrics cannot be read. url={url} error={words}") from error
    return data.decode("utf-8", "replace")
