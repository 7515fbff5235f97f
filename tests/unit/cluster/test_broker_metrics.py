"""Brokers' lag behind the metadata topic, as a JMX exporter gives it; silence is not zero."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from keeplast.cluster import broker_metrics
from keeplast.cluster.broker_metrics import BrokerMetrics, lag_of, metrics_urls, read_metrics
from keeplast.errors import InvalidError, UnavailableError

FETCH = "kafka_consumer_consumer_fetch_manager_metrics_"
POLL = "kafka_consumer_consumer_metrics_last_poll_seconds_ago"
CLIENT = 'client_id="__remote_log_metadata_client_1_consumer"'


def page(lag: str, partition: int = 7, poll: str = "0.0") -> str:
    """Return a part of what a JMX exporter gives of a broker."""
    labels = f'{CLIENT},partition="{partition}",topic="__remote_log_metadata",'
    return (
        f"# HELP {FETCH}records_lag The latest lag of the partition\n"
        f"# TYPE {FETCH}records_lag untyped\n"
        f"{FETCH}records_lag{{{labels}}} {lag}\n"
        f"{FETCH}records_lag_max{{{labels}}} 99.0\n"
        f"{POLL}{{{CLIENT},}} {poll}\n"
        "kafka_server_replicamanager_leadercount 3.0\n"
    )


def of_one_name(lag: str, average: str, most: str) -> str:
    """Return what the exporter 1.x gives by a rule that three attributes match."""
    bean = "kafka.consumer<type=consumer-fetch-manager-metrics, topic=__remote_log_metadata><>"
    labels = f'{CLIENT},partition="7",topic="__remote_log_metadata"'
    return "".join(
        f'kafka_consumer_records_lag{{_objectname="{bean}{attribute}",{labels}}} {value}\n'
        for attribute, value in [
            ("records-lag", lag), ("records-lag-avg", average), ("records-lag-max", most)
        ]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (page("0.0"), 0),
        (page("12.0"), 12),
        (page("1.0E7"), 10_000_000),
        (page("3.0") + page("5.0"), 5),
        (page("0.0", partition=8), None),
        (page("0.0").replace("__remote_log_metadata\",", "orders\","), None),
        (page("NaN"), math.inf),
        (page("-1.0"), math.inf),
        (page("many"), math.inf),
        (page("0.0", poll="61.0"), math.inf),
        (page("0.0", poll="-1.0"), math.inf),
        (page("0.0").replace(POLL, "other"), 0),
        (page("2.0").replace(FETCH, "kafka_consumer_Lag_"), 2),
        (page("2.0").replace("\n", " 1700000000000\n"), 2),
        (page("0.0", poll="61.0").replace("client_id", "clientId"), math.inf),
        (page("0.0", poll="61.0").replace(f"{POLL}{{{CLIENT}", f'{POLL}{{client_id="other"'), 0),
        (of_one_name("3.0", "NaN", "NaN"), 3),
        (of_one_name("0.0", "4.0", "9.0"), 0),
        (page("2.0").replace(",topic=", ",other=\"},{\",topic="), 2),
        ("", None),
        ("<html>records_lag{</html>", None),
        (f"{FETCH}records_lag 5", None),
        (f"{FETCH}records_lag{{ 5", None),
    ],
)  # fmt: skip
def test_the_lag_is_that_of_the_partition_that_is_asked_for(
    text: str, expected: float | None
) -> None:
    assert expected == lag_of(text, 7)


@pytest.mark.parametrize(
    ("texts", "replicas", "words"),
    [
        (["0.0", "0.0", "0.0"], 3, None),
        (["0.0"], 3, None),
        (["0.0", "", ""], 1, None),
        (["0.0", "4.0", "0.0"], 3, "lacks 4 records"),
        (["0.0", "NaN"], 2, "has stopped"),
        (["0.0", "NaN"], 2, "records-lag-max"),
        (["0.0", "0.0", ""], 3, "fewer brokers say"),
        (["", ""], 1, "fewer brokers say"),
        (["0.0", "down"], 1, "does not say how far it is"),
    ],
)
def test_collection_waits_while_a_broker_is_behind_or_silent(
    texts: list[str], replicas: int, words: str | None
) -> None:
    def read(url: str) -> str:
        text = texts[int(url[-1])]
        if text == "down":
            raise UnavailableError("refused")
        return page(text) if text else "up 1\n"

    urls = tuple(f"http://broker/{number}" for number in range(len(texts)))
    why = BrokerMetrics(urls, read).why_wait(7, replicas)
    if words is None:
        assert why is None
    else:
        assert words in (why or "")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("up 1\n", "no metric has a name that ends with records_lag"),
        (page("0.0").replace("records_lag{", "Value{"), "ends with records_lag"),
        (page("0.0").replace("records_lag{", "records_lag_total{"), "ends with records_lag"),
        (f"{FETCH}records_lag_7 0.0\n", "ends with records_lag"),
        (f"{FETCH}7_records_lag 0.0\n", "has no labels topic and partition"),
        (page("0.0").replace("topic=", "name="), "has no labels topic and partition"),
        (page("0.0", partition=8), "give the URL of every broker"),
    ],
)
def test_what_an_exporters_rules_leave_out_is_named_with_its_url(text: str, words: str) -> None:
    answers = {"http://a/": page("0.0"), "http://b/": text}
    why = BrokerMetrics(("http://a/", "http://b/"), answers.__getitem__)
    said = why.why_wait(7, 2) or ""
    assert words in said
    assert ("url=http://b/" in said) == ("every broker" not in said)
    assert "answers=1 of 2" in said


def test_a_broker_without_a_replica_does_not_hide_what_another_ones_rules_leave_out() -> None:
    answers = {"http://a/": page("0.0", partition=8), "http://b/": "up 1\n"}
    for urls in (tuple(answers), tuple(reversed(answers))):
        said = BrokerMetrics(urls, answers.__getitem__).why_wait(7, 1) or ""
        assert "ends with records_lag (url=http://b/)" in said


@pytest.mark.parametrize(
    "text",
    ["", "<html>\n<head><title>Exporter</title></head>\n", '{"status": 200}', "# up\n", "\x1b[2J"],
)
def test_a_page_without_metrics_holds_back_even_if_others_are_current(text: str) -> None:
    answers = {"http://a/": page("0.0"), "http://b/": text}
    said = BrokerMetrics(("http://a/", "http://b/"), answers.__getitem__).why_wait(7, 1) or ""
    assert "no metrics in Prometheus's text form" in said
    assert "url=http://b/" in said
    assert "\x1b" not in said


@pytest.mark.parametrize(
    "given", ["", "broker:7071", "ftp://broker/", "http://", "http://[::1", "http://b:x/", "a,"]
)
def test_a_bad_url_is_refused(given: str) -> None:
    with pytest.raises(InvalidError, match="--broker-metrics"):
        metrics_urls([given])


def test_a_password_is_refused_and_not_shown() -> None:
    with pytest.raises(InvalidError) as caught:
        metrics_urls(["http://a/,http://me:geheim@b/"])
    assert "geheim" not in str(caught.value)
    assert "2. of 2" in str(caught.value)


def test_urls_stand_in_one_option_or_in_several() -> None:
    assert ("http://a/m", "https://b/m", "http://c/m") == metrics_urls(
        ["http://a/m, https://b/m", "http://c/m", "http://a/m"]
    )


Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def served(answer: Answer) -> Iterator[str]:
    """Serve on loopback what ``answer`` writes; gives the URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _say(request: BaseHTTPRequestHandler, code: int, text: bytes) -> None:
    request.send_response(code)
    if code == 302:
        request.send_header("Location", "/metrics")
    request.end_headers()
    request.wfile.write(text)


def test_metrics_are_read_over_http(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    with served(lambda request: _say(request, 200, page("4.0").encode())) as url:
        assert "lacks 4 records" in (BrokerMetrics((url,)).why_wait(7, 1) or "")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (302, "redirects are not followed"), (401, "status=401 says='no'"), (404, "status=404"),
        (500, "status=500"),
    ],
)  # fmt: skip
def test_an_answer_that_is_none_counts_as_silence(code: int, words: str) -> None:
    with served(lambda request: _say(request, code, b"no\nmore")) as url:
        with pytest.raises(UnavailableError, match=words):
            read_metrics(url)
        assert "does not say" in (BrokerMetrics((url,)).why_wait(7, 1) or "")


def test_a_redirect_is_refused_with_its_target() -> None:
    with (
        served(lambda request: _say(request, 302, b"")) as url,
        pytest.raises(UnavailableError, match="location=/metrics"),
    ):
        read_metrics(url)


def test_the_query_of_a_url_is_asked_for_with_it() -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        _say(request, 200, request.path.encode())

    with served(answer) as url:
        assert "/metrics?name[]=a&name[]=b" == read_metrics(f"{url}?name[]=a&name[]=b")


def test_a_token_in_a_query_is_sent_and_not_shown() -> None:
    asked: list[str] = []

    def answer(request: BaseHTTPRequestHandler) -> None:
        asked.append(request.path)
        _say(request, 500, b"no")

    with served(answer) as url:
        said = BrokerMetrics((f"{url}?token=geheim",)).why_wait(7, 1) or ""
    assert ["/metrics?token=geheim"] == asked
    assert "status=500" in said
    assert "geheim" not in said
    with pytest.raises(InvalidError) as caught:
        metrics_urls(["ftp://b/?token=geheim"])
    assert "geheim" not in str(caught.value)


def test_an_answer_that_is_cut_off_counts_as_silence() -> None:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", "5000")
        request.end_headers()
        request.wfile.write(page("0.0").encode())

    with served(answer) as url, pytest.raises(UnavailableError, match="cut off"):
        read_metrics(url)


@pytest.mark.parametrize("head", [b"HTTP/1.0 200 OK\r\nX: ", b"HTTP/1.0 200 OK\r\n\r\n"])
def test_an_exporter_that_answers_byte_by_byte_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch, head: bytes
) -> None:
    monkeypatch.setattr(broker_metrics, "ANSWER_SECONDS_MAX", 0.2)
    gone = threading.Event()

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(head)
        with suppress(OSError):
            while not gone.wait(0.01):
                request.wfile.write(b"x")

    with served(answer) as url:
        try:
            with pytest.raises(UnavailableError, match="do not end"):
                read_metrics(url)
        finally:
            gone.set()


def test_an_exporter_that_never_answers_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_metrics, "TIMEOUT_SECONDS", 0.1)
    gone = threading.Event()

    def answer(_: BaseHTTPRequestHandler) -> None:
        gone.wait()

    with served(answer) as url:
        try:
            with pytest.raises(UnavailableError, match="timed out"):
                read_metrics(url)
        finally:
            gone.set()


def test_a_port_that_speaks_no_tls_counts_as_silence() -> None:
    with (
        served(lambda request: _say(request, 200, b"")) as url,
        pytest.raises(UnavailableError, match="cannot be read"),
    ):
        read_metrics(url.replace("http", "https"))


def test_an_answer_without_an_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_metrics, "ANSWER_BYTES_MAX", 1000)
    with (
        served(lambda request: _say(request, 200, b"x" * 100_000)) as url,
        pytest.raises(UnavailableError, match="do not end"),
    ):
        read_metrics(url)


def test_a_broker_that_is_down_counts_as_silence() -> None:
    with served(lambda request: _say(request, 200, b"")) as url:
        pass
    assert "does not say" in (BrokerMetrics((url,)).why_wait(7, 1) or "")
