"""Makes a data directory for the console's demo: one log of each kind that operators ask about.

Run as ``python tools/demo_console.py DIRECTORY``, which must not exist. Logs had four or five
rounds in the last month, by the clock that these were given, and more came after them: three are
overdue, one is not dirty enough, one is held back by a lag and one by a hold, one is damaged.
Rounds are slowed down, so that somebody sees one.

With ``--run`` and options of ``keeplast run`` that loop is begun on them, and for half an hour a
segment is written now and then, so that there are rounds to watch. What must hold: such a segment
appears all at once, behind the active one, and no file that is there is touched. A directory that
keeplast cleans has no other writer; this one does nothing that a round could be wrong about.
"""

from __future__ import annotations

import contextlib
import io
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path

from msgspec import Struct

from keeplast.cli.main import app
from keeplast.format import leader_epoch, offset_index, time_index
from keeplast.format.batch import encode_batch
from keeplast.format.record import Record
from keeplast.log.root_files import RECEIPTS_NAME

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
RECORDS, RECORDS_A_BATCH = 500, 10
"""Of each segment, and of each batch in it."""
SETTINGS = """\
[topic.orders]
"cleanup.policy" = "compact"
"segment.ms" = 2592000000
"max.compaction.lag.ms" = 604800000

[topic.customers]
"cleanup.policy" = "compact"
"segment.ms" = 2592000000
"max.compaction.lag.ms" = 604800000

[topic.prices]
"cleanup.policy" = "compact"
"segment.ms" = 2592000000
"min.compaction.lag.ms" = 86400000

[topic.invoices]
"cleanup.policy" = "compact"
"segment.ms" = 2592000000

[topic.sessions]
"cleanup.policy" = "compact"
"segment.ms" = 2592000000
"""
SLOW = """
[cluster]
"log.cleaner.io.max.bytes.per.second" = 60000
"log.cleaner.backoff.ms" = 5000
"""
WRITTEN = ("orders-0", "customers-0", "orders-1", "customers-0", "orders-2")
"""Which logs get a segment, over and over."""
WRITE_SECONDS = 4.0
SEGMENTS_WRITTEN_MAX = 450
"""Half an hour of them: then the loop goes on with nothing to do."""
DAMAGED, HELD = "sessions-0", "invoices-0"


class DemoLog(Struct, frozen=True):
    """A log: how many keys it has, its rounds, and how many hours old its segments are.

    ``rounds`` are in order: how many hours ago each was, and the segments that came before it.
    ``later`` came behind the last, and the last of them is active.
    """

    name: str
    keys: int
    rounds: tuple[tuple[float, tuple[float, ...]], ...]
    later: tuple[float, ...]


def _orders(latest: float) -> tuple[tuple[float, tuple[float, ...]], ...]:
    """Return the rounds of a log of orders, the last one after a segment of this age."""
    return ((648, (700, 680)), (528, (600, 560)), (384, (480, 420)), (216, (300, latest)))


LOGS = (
    DemoLog("orders-0", 300, _orders(222), (210, 200, 190, 1)),
    DemoLog("orders-1", 500, _orders(219), (205, 195, 1)),
    DemoLog("orders-2", 700, _orders(218), (200, 190, 1)),
    DemoLog(
        "customers-0", 1400,
        ((552, (660, 640, 620, 600)), (408, (500, 450)), (264, (380, 320)), (120, (200, 130))),
        (48, 40, 1),
    ),
    DemoLog(
        "prices-0", 600,
        ((624, (700, 660)), (480, (600, 540)), (360, (450, 400)), (192, (300, 230)), (48, (76,))),
        (6, 4, 2, 1),
    ),
    DemoLog(
        HELD, 900, ((576, (650, 620)), (432, (520, 480)), (288, (400, 330)), (144, (200, 170))),
        (100, 80, 1),
    ),
    DemoLog(DAMAGED, 200, (), (30, 25, 20, 9)),
)  # fmt: skip
"""Rounds are whole days ago: on how many days there were some depends on no time of day."""


def records(log: DemoLog, base: int, first_ms: int) -> Iterator[Record]:
    """Return the records of a segment: keys over and over, now and then a tombstone."""
    for offset in range(base, base + RECORDS):
        value = None if offset % 41 == 0 else b"value-%060d" % offset
        yield Record(offset, first_ms + offset, b"key-%05d" % (offset * 7919 % log.keys), value)


def write_segment(directory: Path, log: DemoLog, base: int, first_ms: int) -> None:
    """Write a segment with what a broker keeps next to it."""
    found = list(records(log, base, first_ms))
    data = b"".join(
        encode_batch(found[n : n + RECORDS_A_BATCH]) for n in range(0, RECORDS, RECORDS_A_BATCH)
    )
    stem = directory / f"{base:020d}"
    stem.with_suffix(".log").write_bytes(data)
    stem.with_suffix(".index").write_bytes(offset_index.encode([]))
    last = found[-1]
    times = time_index.encode([(last.timestamp, RECORDS - 1)])
    stem.with_suffix(".timeindex").write_bytes(times)
    epochs = leader_epoch.encode([leader_epoch.LeaderEpoch(0, 0)])
    (directory / "leader-epoch-checkpoint").write_bytes(epochs)


def main(root: Path, now_ms: int) -> None:
    """Write the logs and their settings, and have their rounds done at the time of each."""
    root.mkdir(parents=True)
    (root / "keeplast.toml").write_text(SETTINGS, encoding="utf-8")
    written = dict.fromkeys((log.name for log in LOGS), 0)

    def write(log: DemoLog, ages: Iterable[float]) -> None:
        for hours in ages:
            first_ms = now_ms - round(hours * HOUR_MS)
            write_segment(root / log.name, log, written[log.name] * RECORDS, first_ms)
            written[log.name] += 1

    for log in LOGS:
        (root / log.name).mkdir()
    every = ((hours, log, ages) for log in LOGS for hours, ages in log.rounds)
    for hours, log, ages in sorted(every, key=lambda each: -each[0]):
        write(log, ages)
        clean(root, log, now_ms - round(hours * HOUR_MS))
    point = written[HELD] * RECORDS
    for log in LOGS:
        write(log, log.later)
    quietly(
        "hold", "add", str(root), "year-end-2026", "--topic", HELD.removesuffix("-0"),
        "--partition", "0", "--at", str(point), "--max-age", "12d",
    )  # fmt: skip
    damaged = root / DAMAGED / f"{RECORDS:020d}.log"
    data = damaged.read_bytes()
    damaged.write_bytes(data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    (root / "keeplast.toml").write_text(SETTINGS + SLOW, encoding="utf-8")


def clean(root: Path, log: DemoLog, at_ms: int) -> None:
    """Have a round of a log done by a clock that says ``at_ms``, its active segment closed."""
    topic, _, number = log.name.rpartition("-")
    quietly(
        "clean", str(root), "--topic", topic, "--partition", number, "--now-ms", str(at_ms),
        "--roll-active", "--despite", "dirty-ratio", "--runner", "local", "--cores", "1",
        "--receipt", str(root / RECEIPTS_NAME),
    )  # fmt: skip


def quietly(*words: str) -> None:
    """Have a command done that prints nothing."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        app(words, standalone_mode=False)


def write_next(root: Path, scratch: Path, log: DemoLog, now_ms: int) -> None:
    """Write one more segment of a log; the active one is closed by it, as when a broker rolls.

    It is made in ``scratch``, on the same disk, and put behind the others with its ``.log`` last.
    """
    bases = [int(each.stem) for each in (root / log.name).glob("*.log")]
    base = max(bases) + RECORDS
    scratch.mkdir(exist_ok=True)
    write_segment(scratch, log, base, now_ms)
    for suffix in (".index", ".timeindex", ".log"):
        name = f"{base:020d}{suffix}"
        (scratch / name).replace(root / log.name / name)


def write_on(root: Path, ended: Callable[[float], bool]) -> None:
    """Write segments until ``ended``, which waits as long as it says, or there were enough."""
    logs = {each.name: each for each in LOGS}
    for name in islice(cycle(WRITTEN), SEGMENTS_WRITTEN_MAX):
        if ended(WRITE_SECONDS):
            return
        write_next(root, root.with_name(f"{root.name}-next"), logs[name], now_ms())


def run(root: Path, words: Sequence[str]) -> int:
    """Have ``keeplast run`` clean the logs while more is written; returns its exit code."""
    command = [sys.executable, "-m", "keeplast", "run", str(root), *words]
    with subprocess.Popen(command) as loop:
        signal.signal(signal.SIGTERM, lambda *_: loop.terminate())
        try:
            write_on(root, lambda seconds: has_ended(loop, seconds))
            return loop.wait()
        except KeyboardInterrupt:
            # The loop got the signal too, by the terminal: it ends its rounds and says so.
            return loop.wait()


def has_ended(loop: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for the end of the loop, so long at most; say whether it has come."""
    try:
        loop.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def now_ms() -> int:
    """Return the time, in milliseconds since 1970."""
    return time.time_ns() // 1_000_000


if __name__ == "__main__":
    directory, *options = sys.argv[1:]
    main(Path(directory), now_ms())
    if options[:1] == ["--run"]:
        sys.exit(run(Path(directory), options[1:]))
