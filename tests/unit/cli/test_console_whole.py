"""Whole commands with a console: pages are read and an action is posted while they run.

The command runs in the main thread, as its signals ask for; who visits its console is another.
"""

from __future__ import annotations

import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import keeplast.cli.console
import keeplast.cli.run
from keeplast.api.attached_logs import AttachedLogs
from keeplast.cli.main import app
from keeplast.service.console.server import ConsoleServer
from keeplast.service.history import ALL, read_history
from tests.support import called
from tests.support.attached_loop import LoopWorld
from tests.support.waiting import SECONDS_MAX, wait_until

SAMPLE = Path(__file__).parents[3] / "src" / "keeplast" / "samples" / "broker-4.3.0"
Visit = Callable[[httpx.Client], None]


@pytest.fixture(autouse=True)
def ctrl_c() -> Iterator[None]:
    """Let a signal end a command: where tests run in the background too, and one that never came
    so far as to wait for it, but not the tests.
    """
    ends = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(each, signal.default_int_handler) for each in ends]
    yield
    # The loop over a cluster counts signals until its process is over, and ends it at the second.
    signal.set_wakeup_fd(-1)
    for each, handler in zip(ends, before, strict=True):
        signal.signal(each, handler)


def visited(
    monkeypatch: pytest.MonkeyPatch, home: Any, number: signal.Signals, visit: Visit, *words: object
) -> int:
    """Run a command, let ``visit`` go to its console, and end it by a signal; its exit code."""
    wrong: list[BaseException] = []
    threads: list[threading.Thread] = []

    def go(server: ConsoleServer) -> None:
        try:
            token = server.printed_token or ""
            base = server.address.rstrip("/")
            with httpx.Client(
                base_url=base, headers={"origin": base}, timeout=SECONDS_MAX, trust_env=False
            ) as client:
                # The loop's handlers are in place when it has looked.
                wait_until(lambda: client.get("/healthz").status_code == 200)
                assert 303 == client.post("/enter", data={"token": token}).status_code
                visit(client)
        except BaseException as error:  # noqa: BLE001 - whatever went wrong, the command must end
            wrong.append(error)
        finally:
            # To the main thread, which sleeps until it comes.
            signal.pthread_kill(threading.main_thread().ident or 0, number)

    def served(server: ConsoleServer, _: object) -> None:
        threads.append(threading.Thread(target=go, args=(server,)))
        threads[-1].start()

    monkeypatch.setattr(home, "say_console", served)
    try:
        done = CliRunner().invoke(app, [str(each) for each in words])
    finally:
        for each in threads:
            each.join()
        if wrong:
            raise wrong[0]
    assert threads, done.stderr
    return done.exit_code


def form_of(page: str) -> str:
    found = re.search(r'name="form" value="([0-9a-f]+)"', page)
    assert found is not None, page
    return found[1]


def try_again(receipt: Path, topic: str) -> Visit:
    """Return who reads the pages of a loop, asks for another try, and sees that it was heard."""

    def visit(client: httpx.Client) -> None:
        wait_until(lambda: client.get("/work.json").json()["is_running"])
        assert f"{topic}-0" in client.get("/").text
        page = client.get(f"/log/{topic}/0").text
        assert "Try again now" in page
        assert "Settings" in page
        form = {"form": form_of(page), "topic": topic, "partition": "0"}
        assert 303 == client.post("/do/retry", data=form).status_code
        wait_until(lambda: receipt.exists() and "retry" in receipt.read_text("utf-8"))
        wait_until(lambda: "retry" in client.get(f"/work?q={topic}").text)

    return visit


def kept_topics(receipt: Path) -> set[str]:
    """Return of which topics there is a history next to a file of receipts."""
    return set(read_history(Path(f"{receipt}.history").read_bytes(), receipt).topics)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """A host's data directory."""
    shutil.copytree(SAMPLE / "orders-0", tmp_path / "data" / "orders-0")
    settings = '[topic.orders]\n"cleanup.policy" = "compact"\n"max.compaction.lag.ms" = 3600000\n'
    (tmp_path / "data" / "keeplast.toml").write_text(settings, encoding="utf-8")
    return tmp_path / "data"


@pytest.fixture
def store(tmp_path: Path, data: Path) -> str:
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    words = ("copy", str(data), url, "--new", "--objects", f"file://{tmp_path / 'objects'}")
    called.run(*words, "--topic", "orders", code=0)
    return url


def test_tier_run_shows_itself_and_the_hosts_log_and_hears_what_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, data: Path, store: str
) -> None:
    receipt = tmp_path / "receipt"

    def visit(client: httpx.Client) -> None:
        try_again(receipt, "orders")(client)
        assert "On this host, to the same scale" in client.get("/log/orders/0").text
        assert 2 == client.get("/partitions?rows=roomy").text.count('<svg class="strip"')

    code = visited(
        monkeypatch, keeplast.cli.run, signal.SIGTERM, visit, "run", store,
        "--data-dir", data, "--runner", "local", "--cores", 1, "--console", 0, "--allow-actions",
        "--receipt", receipt,
    )  # fmt: skip
    assert 143 == code
    assert {ALL, "orders"} == kept_topics(receipt)


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LoopWorld]:
    """A live cluster that the command reaches."""
    made = LoopWorld(tmp_path)
    made.topic("a")
    monkeypatch.setattr(AttachedLogs, "connect", lambda self: made.cluster)
    yield made
    made.close()


def test_attach_run_shows_itself_and_hears_what_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, world: LoopWorld
) -> None:
    receipt = tmp_path / "receipt"
    code = visited(
        monkeypatch, keeplast.cli.run, signal.SIGTERM, try_again(receipt, "a"),
        "run", "kafka://b:9092", "--topic", "a", "--decisions",
        f"sqlite:///{tmp_path / 'decisions.db'}", "--storage", f"local:{world.storage}",
        "--runner", "local", "--cores", 1, "--console", 0, "--allow-actions", "--receipt", receipt,
    )  # fmt: skip
    assert 143 == code
    assert {ALL, "a"} == kept_topics(receipt)


def looks(topic: str) -> Visit:
    """Return who reads the pages where nothing runs, and is refused an action."""

    def visit(client: httpx.Client) -> None:
        assert f"{topic}-0" in client.get("/").text
        assert "Nothing runs here" in client.get("/work").text
        assert client.get(f"/log/{topic}/0/settings.json").json()["settings"]
        assert client.get("/work.json").json()["is_running"] is False
        page = client.get(f"/log/{topic}/0").text
        assert "Try again now" not in page
        form = {"form": "0" * 64, "topic": topic, "partition": "0"}
        assert 403 == client.post("/do/retry", data=form).status_code

    return visit


def test_a_console_of_a_store_only_looks(
    monkeypatch: pytest.MonkeyPatch, data: Path, store: str
) -> None:
    code = visited(
        monkeypatch, keeplast.cli.console, signal.SIGINT, looks("orders"), "console", store,
        "--data-dir", data, "--listen", 0,
    )  # fmt: skip
    assert 0 == code


def test_a_console_of_a_live_cluster_only_looks(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, world: LoopWorld
) -> None:
    code = visited(
        monkeypatch, keeplast.cli.console, signal.SIGINT, looks("a"), "console",
        "kafka://b:9092", "--topic", "a", "--listen", 0,
    )  # fmt: skip
    assert 0 == code
