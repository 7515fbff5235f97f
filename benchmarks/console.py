"""``python -m benchmarks.console``: what it costs to have the console open.

``keeplast console`` runs over many small logs in a process of its own. Browsers that take the
overview every five seconds, each with an event stream, ask it as Chromium would, without drawing
anything. It shows the processor time of the console alone, its memory, and the time to the first
byte of pages that are asked for one at a time, without other readers.

Then a loop with a console does rounds that are asked for, in turn with clients and without. They
are of another process, hold event streams or reload, and take each page that has changed. It
shows the processor time of the thread that rewrites.
"""

from __future__ import annotations

import argparse
import http.client
import itertools
import json
import multiprocessing
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing.synchronize import Event, Semaphore
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.machine import describe, machine
from benchmarks.options import positive
from benchmarks.pairs import PAIRS_MIN, Pairs
from benchmarks.process_figures import (
    PeakMemory,
    busiest_thread_seconds,
    family_seconds,
    thread_seconds,
)
from benchmarks.start import LOG, SETTINGS, write_partitions
from benchmarks.workload import TOPIC, write_log
from keeplast.log.root_files import RECEIPTS_NAME

PARTITIONS, BROWSERS = 10_000, 10
SECONDS, REFRESH_SECONDS = 30, 5.0
SMALL = replace(LOG, name="console", log_bytes=8 << 10, segment_bytes=4 << 10)
PATHS = (
    "/", "/partitions?page=150", "/?q=bench-77&sort=size", "/topic/bench?sort=due", "/log/bench/77",
    "/work", "/time", "/overview.json",
)  # fmt: skip
TURNS = 20
ROUND = replace(LOG, name="round", log_bytes=256 << 20, segment_bytes=64 << 20)
CLIENTS, RELOAD_SECONDS = 200, 10.0
TOKEN = "a-token-of-the-benchmark"
ANSWER_SECONDS_MAX = 60


class Console(Struct, frozen=True):
    """A console under measurement: its process and port, and what its first look took."""

    process_id: int
    port: int
    look_seconds: float


@contextmanager
def running(words: Sequence[str], cache: Path) -> Iterator[Console]:
    """Start a command that has a console, and end it."""
    with subprocess.Popen(
        [sys.executable, "-m", "keeplast", *words, *SETTINGS],
        env={**os.environ, "KEEPLAST_CACHE_DIR": str(cache)},
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True,
    ) as process:  # fmt: skip
        try:
            assert process.stderr is not None
            found = None
            while found is None and (line := process.stderr.readline()):
                found = re.search(r"console at http://127\.0\.0\.1:(\d+)/", line)
            if found is None:
                raise RuntimeError("the console did not begin")
            yield Console(process.pid, int(found[1]), family_seconds(process.pid))
        finally:
            process.send_signal(signal.SIGINT)
            process.communicate()


def first_byte(connection: http.client.HTTPConnection, path: str) -> float:
    """Ask for a page, take all of it, and return the seconds until it began to come."""
    started = time.monotonic()
    connection.request("GET", path)
    answer = connection.getresponse()
    answer.read(1)
    took = time.monotonic() - started
    answer.read()
    if answer.status != 200:
        raise RuntimeError(f"no such page. path={path} status={answer.status}")
    return took


def page_of(console: Console, path: str) -> bytes:
    """Return a page."""
    connection = connected(console)
    connection.request("GET", path)
    found = connection.getresponse().read()
    connection.close()
    return found


def connected(console: Console) -> http.client.HTTPConnection:
    """Return a connection of a browser's own."""
    return http.client.HTTPConnection("127.0.0.1", console.port, timeout=ANSWER_SECONDS_MAX)


def page_times(console: Console, paths: Sequence[str], turns: int) -> dict[str, tuple[float, ...]]:
    """Return for each path the times to the first byte, and processor time of one, the last."""
    found = {}
    for path in paths:
        before = family_seconds(console.process_id)
        times = []
        for _ in range(turns):
            connection = connected(console)
            times.append(first_byte(connection, path))
            connection.close()
        worked = (family_seconds(console.process_id) - before) / turns
        found[path] = (*sorted(times), worked)
    return found


def listen(console: Console, ended: threading.Event) -> None:
    """Take an event stream until the end."""
    connection = connected(console)
    connection.request("GET", "/events")
    answer = connection.getresponse()
    while not ended.is_set() and answer.readline():
        pass
    connection.close()


def refresh(console: Console, ended: threading.Event, wait: float) -> None:
    """Take the overview again and again, as a page that reloads."""
    if ended.wait(wait):
        return
    while True:
        connection = connected(console)
        first_byte(connection, "/")
        connection.close()
        if ended.wait(REFRESH_SECONDS):
            return


def watched(console: Console, browsers: int, seconds: float) -> float:
    """Have so many browsers watch, and return which share of a core the console took."""
    ended = threading.Event()
    threads = []
    for number in range(browsers):
        wait = number * REFRESH_SECONDS / browsers
        threads.append(threading.Thread(target=listen, args=(console, ended)))
        threads.append(threading.Thread(target=refresh, args=(console, ended, wait)))
    for thread in threads:
        thread.start()
    before, started = family_seconds(console.process_id), time.monotonic()
    time.sleep(seconds)
    share = (family_seconds(console.process_id) - before) / (time.monotonic() - started)
    ended.set()
    for thread in threads:
        thread.join()
    return share


def look_on(port: int, path: str, looks: Semaphore, ended: Event) -> None:
    """Look at a page as its script does: by events, or where there are too many by reloading."""
    page, stream = (
        http.client.HTTPConnection("127.0.0.1", port, timeout=ANSWER_SECONDS_MAX) for _ in range(2)
    )
    has: dict[str, str] = {}

    def renew() -> None:
        page.request("GET", path, headers=has)
        answer = page.getresponse()
        answer.read()
        has["If-None-Match"] = answer.getheader("etag", "")
        page.close()

    renew()
    looks.release()
    while not ended.is_set():
        stream.request("GET", "/events")
        answer, seen = stream.getresponse(), None
        while answer.status == 200 and not ended.is_set() and (line := answer.readline()):
            if line.startswith(b"data: "):
                event = json.loads(line[6:])
                now = (event["serial"], (event["live"] or event)["serial"])
                if now != seen:
                    renew()
                seen = now
        stream.close()
        if answer.status != 200 and not ended.wait(RELOAD_SECONDS):
            renew()


def look_on_all(port: int, count: int, looks: Semaphore, ended: Event) -> None:
    """Be so many clients."""
    paths = itertools.cycle(("/", "/log/bench/0", "/work", "/partitions"))
    threads = [
        threading.Thread(target=look_on, args=(port, path, looks, ended))
        for path in itertools.islice(paths, count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@contextmanager
def watched_by(port: int, count: int) -> Iterator[None]:
    """Have so many clients in a process of their own; each has seen its page."""
    spawn = multiprocessing.get_context("spawn")
    looks, ended = spawn.Semaphore(0), spawn.Event()
    process = spawn.Process(target=look_on_all, args=(port, count, looks, ended))
    process.start()
    try:
        for _ in range(count):
            if not looks.acquire(timeout=ANSWER_SECONDS_MAX):
                raise RuntimeError("a client has not seen its page")
        yield
    finally:
        ended.set()
        process.join()


def one_round(console: Console, partition: int, receipts: Path) -> tuple[float, float]:
    """Ask for a round; returns its seconds by the clock, and those of its busiest thread."""
    before, size = thread_seconds(console.process_id), receipts_in(receipts)
    started = time.monotonic()
    connection = connected(console)
    connection.request(
        "POST", "/do/clean", f"topic={TOPIC}&partition={partition}",
        {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/x-www-form-urlencoded"},
    )  # fmt: skip
    if (status := connection.getresponse().status) != 303:
        raise RuntimeError(f"no round was begun. status={status}")
    connection.close()
    wait_for(lambda: receipts_in(receipts) > size)
    took = time.monotonic() - started
    worked = busiest_thread_seconds(before, thread_seconds(console.process_id))
    return took, worked or 0.0


def wait_for(reached: Callable[[], bool]) -> None:
    """Return when it is reached; RuntimeError when that takes too long."""
    until = time.monotonic() + ANSWER_SECONDS_MAX
    while not reached():
        if time.monotonic() > until:
            raise RuntimeError("the loop does not go on")
        time.sleep(0.01)


def receipts_in(file: Path) -> int:
    """Return how many rounds have left a receipt."""
    return file.read_bytes().count(b'"round"') if file.exists() else 0


def rounds_next_to(clients: int, scratch: Path) -> list[tuple[str, str]]:
    """Do rounds alone and next to clients, in turn, and return what they took."""
    logs, tokens = scratch / "rounds", scratch / "tokens"
    tokens.touch(0o600)
    tokens.write_text(f"actor {TOKEN}\n", encoding="ascii")
    write_log(ROUND, logs)
    for number in range(1, 2 * PAIRS_MIN + 1):
        shutil.copytree(logs / f"{TOPIC}-0", logs / f"{TOPIC}-{number}")
    words = (
        "run", str(logs), "--console", "127.0.0.1:0", "--allow-actions", "--console-token-file",
        str(tokens), "--runner", "local", "--cores", "1", "--config",
        "min.cleanable.dirty.ratio=1.0",
    )  # fmt: skip
    alone, beside = [], []
    with running(words, scratch / "cache") as console:
        # The loop has looked when its pages have something.
        wait_for(lambda: b"bench-0" in page_of(console, "/partitions"))
        one_round(console, 0, logs / RECEIPTS_NAME)
        for number in range(1, 2 * PAIRS_MIN, 2):
            alone.append(one_round(console, number, logs / RECEIPTS_NAME))
            with watched_by(console.port, clients):
                beside.append(one_round(console, number + 1, logs / RECEIPTS_NAME))
    shutil.rmtree(logs)
    clock, work = (
        Pairs(tuple(each[at] for each in beside), tuple(each[at] for each in alone))
        for at in (0, 1)
    )
    return [
        (
            f"{what} of a round next to {clients} clients, to one alone: best of 5 (mean)",
            f"{1 / pairs.ratio:.2f} ({sum(pairs.ours) / sum(pairs.theirs):.2f})",
        )
        for what, pairs in (("processor time", work), ("clock", clock))
    ]


def resident_mib(console: Console) -> float:
    """Return what the console holds now."""
    pages = int(Path(f"/proc/{console.process_id}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def table(rows: Sequence[tuple[str, str]]) -> str:
    """Return the figures as Markdown."""
    return "\n".join(["| what | |", "|---|--:|", *(f"| {what} | {said} |" for what, said in rows)])


def main() -> None:
    """Measure and print; see ``--help``."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--partitions", type=positive, default=PARTITIONS)
    parser.add_argument("--browsers", type=positive, default=BROWSERS)
    parser.add_argument("--seconds", type=positive, default=SECONDS, help="how long they watch")
    parser.add_argument("--turns", type=positive, default=TURNS, help="counts of each page")
    parser.add_argument("--logs", type=Path, help="where logs are, or will be; default: TMPDIR")
    arguments = parser.parse_args()
    rows: list[tuple[str, str]] = []
    with tempfile.TemporaryDirectory(prefix="keeplast-console-") as name:
        scratch = Path(name)
        logs = arguments.logs or scratch / "logs"
        if not logs.exists():
            write_partitions(logs, arguments.partitions, SMALL)
        words = ("console", str(logs), "--listen", "127.0.0.1:0")
        with running(words, scratch / "cache") as console, PeakMemory(console.process_id) as memory:
            rows.append(("start and first look, processor time", f"{console.look_seconds:.1f} s"))
            rows.append(("memory behind it", f"{resident_mib(console):.0f} MiB"))
            for path, (*times, worked) in page_times(console, PATHS, arguments.turns).items():
                rows.append(
                    (
                        f"`{path}`: first byte, median (slowest); processor time",
                        f"{1000 * statistics.median(times):.0f} ms ({1000 * times[-1]:.0f}); "
                        f"{1000 * worked:.0f} ms",
                    )
                )
            for browsers in (1, arguments.browsers):
                share = watched(console, browsers, arguments.seconds)
                rows.append((f"{browsers} browsers, of a core", f"{100 * share:.1f} %"))
            rows.append(("memory, most", f"{memory.peak_bytes / 2**20:.0f} MiB"))
        if arguments.logs is None:
            shutil.rmtree(logs)
        rows += rounds_next_to(CLIENTS, scratch)
    print(describe(machine()))
    print()
    print(table(rows))


if __name__ == "__main__":
    main()
