"""``python -m benchmarks.console``: what it costs to have the console open.

``keeplast console`` runs over many small logs in a process of its own. Browsers that take the
overview every five seconds, each with an event stream, ask it as Chromium would, without drawing
anything. Told are the processor time of the console alone, its memory, and the time to the first
byte of pages that are asked for one at a time, while nobody else does.
"""

from __future__ import annotations

import argparse
import http.client
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
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.machine import describe, machine
from benchmarks.options import positive
from benchmarks.process_figures import PeakMemory, family_seconds
from benchmarks.start import LOG, SETTINGS, write_partitions

PARTITIONS, BROWSERS = 10_000, 10
SECONDS, REFRESH_SECONDS = 30, 5.0
SMALL = replace(LOG, name="console", log_bytes=8 << 10, segment_bytes=4 << 10)
PATHS = (
    "/", "/partitions?page=150", "/?q=bench-77&sort=size", "/topic/bench?sort=due", "/log/bench/77",
    "/work", "/time", "/overview.json",
)  # fmt: skip
TURNS = 20
ANSWER_SECONDS_MAX = 60


@dataclass(frozen=True, slots=True)
class Console:
    """A console under measurement: its process and port, and what its first look took."""

    process_id: int
    port: int
    look_seconds: float


@contextmanager
def running(logs: Path, cache: Path) -> Iterator[Console]:
    """Start a console of ``logs`` and end it."""
    words = ("console", str(logs), "--listen", "127.0.0.1:0", *SETTINGS)
    with subprocess.Popen(
        [sys.executable, "-m", "keeplast", *words],
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
        with running(logs, scratch / "cache") as console, PeakMemory(console.process_id) as memory:
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
    print(describe(machine()))
    print()
    print(table(rows))


if __name__ == "__main__":
    main()
