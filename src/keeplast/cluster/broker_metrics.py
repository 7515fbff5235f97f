"""How far brokers have read the metadata topic, by what their JVMs report in Prometheus's text
form.

Kafka has no metric of its own for it. A broker reads the topic by an ordinary consumer
(``ConsumerTask`` of the topic-based metadata manager). So its JVM has, for each partition of
``__remote_log_metadata`` that is read, the attribute ``records-lag`` of the JMX bean
``kafka.consumer:type=consumer-fetch-manager-metrics,client-id=..,topic=..,partition=..``
(``FetchCollector.fetchRecords``, 3.9 and 4.x). Prometheus's JMX exporter, without rules of its own,
gives it as ``kafka_consumer_consumer_fetch_manager_metrics_records_lag{partition="7",topic=..}``.

The rule: **silence is not zero**. A broker that does not answer, or stopped to read, lags. When
fewer brokers answer for a partition than have replicas, it counts as not read to its end. A lag of
zero says that a broker has read what was there when it asked last, a moment ago.
"""

from __future__ import annotations

import math
import re
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from threading import Event, Timer
from urllib.parse import urlsplit

from msgspec import Struct

from keeplast.cluster.live_cluster import METADATA_TOPIC
from keeplast.errors import InvalidError, UnavailableError, error_words
from keeplast.model.text import printable, shown_url

LAG, LAST_POLL = "records_lag", "last_poll_seconds_ago"
"""How the names of two metrics end, whatever an exporter's rules put before them."""
POLL_SECONDS_MAX = 60
"""A consumer polls ten times a second; one that did not for so long has stopped, or hangs."""
TIMEOUT_SECONDS, ANSWER_SECONDS_MAX = 10, 30
ANSWER_BYTES_MAX = 64 << 20
CHUNK_BYTES = 1 << 16
URLS_MAX = 1_000
SHOWN_MAX = 200
_OK, _REDIRECTS = 200, range(300, 400)
_SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*\Z")
_LABEL = re.compile(r'([A-Za-z_][A-Za-z0-9_]*)="((?:[^"\\]|\\.)*)"')
_GIVE = (
    "have its JMX exporter give records-lag of kafka.consumer:type=consumer-fetch-manager-metrics "
    "with the labels topic and partition (docs/how-to/attach-broker-metrics.md has the rules), or "
    "leave --broker-metrics out"
)


class MetricSample(Struct, frozen=True):
    """One line of an exposition; ``name`` is in lower case, and so are labels, without ``_``.

    Rules write ``client_id`` and ``clientId``.
    """

    name: str
    labels: dict[str, str]
    value: float


class BrokerMetrics(Struct, frozen=True):
    """Where brokers' metrics are asked for: ``urls``, as :func:`metrics_urls` returns them."""

    urls: tuple[str, ...]
    read: Callable[[str], str] | None = None
    """Gives the text of a URL, UnavailableError when it does not; by default over HTTP."""

    def why_wait(self, partition: int, replicas: int) -> str | None:
        """Return why brokers may not have read ``partition`` to its end, None when they have.

        ``replicas`` of a topic's partition follow it in that partition of the metadata topic.
        """
        answered, lacks = 0, ""
        for url in self.urls:
            try:
                text = (self.read or read_metrics)(url)
                _require_metrics(text, url)
            except UnavailableError as error:
                return f"a broker does not say how far it is: {error}"
            lag = lag_of(text, partition)
            if lag is None:
                lacks = lacks or _what_lacks(text, url)
                continue
            answered += 1
            if lag > 0:
                return f"a broker {_behind(lag)}. partition={partition} url={shown_url(url)}"
        if answered < max(min(replicas, len(self.urls)), 1):
            return (
                f"fewer brokers say how far they are in {METADATA_TOPIC} than have a replica; "
                f"{lacks or 'give the URL of every broker'}. partition={partition} "
                f"replicas={replicas} answers={answered} of {len(self.urls)}"
            )
        return None


def metrics_urls(given: Sequence[str]) -> tuple[str, ...]:
    """Return the URLs of ``--broker-metrics``; each value may be several with commas between.

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
                f"the metrics a port that needs none. --broker-metrics={number}. of {len(found)}",
                code="K119",
            )
        if not is_good:
            raise InvalidError(
                "give http://HOST:PORT/PATH of each broker's metrics, with commas between. "
                f"--broker-metrics={shown_url(each)[:SHOWN_MAX]}",
                code="K443",
            )
    if len(found) > URLS_MAX:
        raise InvalidError(
            f"give {URLS_MAX} URLs at most. --broker-metrics has {len(found)}", code="K443"
        )
    return tuple(dict.fromkeys(found))


def lag_of(text: str, partition: int) -> float | None:
    """Return how many records of a partition of the metadata topic a broker still has to read.

    None when it does not report it, as one that has no replica of a topic in it. Infinity when the
    reporting consumer has not polled for :data:`POLL_SECONDS_MAX`, or when its value is no count.
    """
    samples = list(_samples(text, LAG, LAST_POLL))
    found: list[float] = []
    for each in samples:
        asked = (each.labels.get("topic"), each.labels.get("partition"))
        is_asked = asked == (METADATA_TOPIC, str(partition))
        if not (each.name.endswith(LAG) and is_asked and _is_lag_itself(each)):
            continue
        client = each.labels.get("clientid")
        polls = [
            other.value
            for other in samples
            if other.name.endswith(LAST_POLL) and other.labels.get("clientid") == client
        ]
        is_read = all(0 <= seconds <= POLL_SECONDS_MAX for seconds in polls)
        found.append(each.value if is_read and each.value >= 0 else math.inf)
    return max(found, default=None)


def _behind(lag: float) -> str:
    if not math.isinf(lag):
        return f"lacks {lag:.0f} records of {METADATA_TOPIC}"
    return (
        f"has stopped to read {METADATA_TOPIC}, or its exporter gives records-lag-max under the "
        "name of records-lag (that rule's pattern has to end with records-lag and a colon)"
    )


def _is_lag_itself(sample: MetricSample) -> bool:
    """Say whether it is ``records-lag``, not ``-max`` or ``-avg`` under the same name.

    An exporter looks for a rule's pattern anywhere, so that one without a colon after
    ``records-lag`` gives all three; 1.x gives them different labels. The other two are no numbers a
    minute after the last record, and would say of every quiet broker that it has stopped.
    """
    return sample.labels.get("objectname", LAG).replace("-", "_").endswith(LAG)


def _require_metrics(text: str, url: str) -> None:
    """Raise UnavailableError when ``text`` has no metric at all, as a page has none."""
    if next(_samples(text, ""), None) is None:
        start = printable(text.strip()[:40])
        raise UnavailableError(
            "what is there is no metrics in Prometheus's text form; give the path too, as "
            f"http://HOST:PORT/metrics. url={shown_url(url)} starts={start!r}",
            code="K443",
        )


def _what_lacks(text: str, url: str) -> str:
    """Say what a broker's metrics lack to report any partition; nothing when they report some."""
    lags = list(_samples(text, LAG))
    if not lags:
        return f"of one no metric has a name that ends with {LAG} (url={shown_url(url)}): {_GIVE}"
    if not any({"topic", "partition"} <= each.labels.keys() for each in lags):
        return f"of one {LAG} has no labels topic and partition (url={shown_url(url)}): {_GIVE}"
    return ""


def _samples(text: str, *ends: str) -> Iterator[MetricSample]:
    """Yield metrics by how their names end; other lines, and those that are none, are passed."""
    for line in text.splitlines():
        start = line.partition("{")[0].split(maxsplit=1)
        name = start[0].lower() if start else ""
        if not name or name.startswith("#") or not name.endswith(ends):
            continue
        match = _SAMPLE.match(line)
        if match is None:
            continue
        try:
            value = float(match[3])
        except ValueError:
            value = math.nan
        labels = {
            key.lower().replace("_", ""): each for key, each in _LABEL.findall(match[2] or "")
        }
        yield MetricSample(name, labels, value)


def read_metrics(url: str) -> str:
    """Return the text of ``url``; UnavailableError when it does not answer, soon, in bounds.

    Metrics are asked for at the given URLs, and nowhere else: no proxy, no redirect is followed.
    """
    parts = urlsplit(url)
    host = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        with closing(host(parts.hostname or "", parts.port, timeout=TIMEOUT_SECONDS)) as connection:
            connection.connect()
            return _answer(connection, target, url)
    except (OSError, HTTPException, ValueError) as error:
        words = printable(error_words(error))[:SHOWN_MAX]
        raise UnavailableError(
            f"its metrics cannot be read. url={shown_url(url)} error={words}", code="K443"
        ) from error


def _answer(connection: HTTPConnection, target: str, url: str) -> str:
    """Return the whole answer to one question over ``connection``, which is connected."""
    # A timeout is one of each piece: who sends a byte of a header now and then would go on.
    ended = Event()

    def end(asked: socket.socket) -> None:
        ended.set()
        with suppress(OSError):
            asked.shutdown(socket.SHUT_RDWR)

    data = bytearray()
    watch = Timer(ANSWER_SECONDS_MAX, end, (connection.sock,))
    watch.daemon = True
    watch.start()
    try:
        connection.request("GET", target)
        with connection.getresponse() as answer:
            while len(data) <= ANSWER_BYTES_MAX and (chunk := answer.read1(CHUNK_BYTES)):
                data += chunk
            if answer.length and not ended.is_set() and len(data) <= ANSWER_BYTES_MAX:
                raise HTTPException(f"the answer is cut off, {answer.length} bytes are missing")
    except (OSError, HTTPException):
        if not ended.is_set():
            raise
    finally:
        watch.cancel()
    if ended.is_set() or len(data) > ANSWER_BYTES_MAX:
        raise UnavailableError(
            "its metrics do not end: is this a broker's JMX exporter? "
            f"url={shown_url(url)} bytes={len(data)}",
            code="K443",
        )
    text = data.decode("utf-8", "replace")
    _require_ok(answer, text, url)
    return text


def _require_ok(answer: HTTPResponse, text: str, url: str) -> None:
    """Raise UnavailableError for an answer that is none, with what it says."""
    if answer.status in _REDIRECTS:
        leads = printable(shown_url(answer.getheader("Location", "")))[:SHOWN_MAX]
        raise UnavailableError(
            "its metrics are elsewhere, and redirects are not followed; give where this one leads. "
            f"url={shown_url(url)} status={answer.status} location={leads}",
            code="K443",
        )
    if answer.status != _OK:
        says = printable((text.strip().splitlines() or [""])[0][:SHOWN_MAX])
        raise UnavailableError(
            "its metrics cannot be read. "
            f"url={shown_url(url)} status={answer.status} says={says!r}",
            code="K443",
        )
