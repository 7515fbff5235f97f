"""Makes a data directory for the console's demo: one log of each kind that operators ask about.

Run as ``python tools/demo_console.py DIRECTORY``, which must not exist. Some logs have had a round
already, and more came behind it: three are overdue, one is not dirty enough, one is held back by
a lag, one is damaged. Rounds are slowed down, so that somebody sees one.

With ``--run`` and options of ``keeplast run`` that loop is begun on them, and for half an hour a
segment is written now and then, so that there are rounds to watch. What must hold: such a segment
appears all at once, behind the active one, and no file that is there is touched. A directory that
keeplast cleans has no other writer; this one does nothing that a round could be wrong about.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from pathlib import Path

from keeplast.format import leader_epoch, offset_index, time_index
from keeplast.format.batch import encode_batch
from keeplast.format.record import Record

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
DAMAGED = "sessions-0"
SECONDS_MAX = 300


@dataclass(frozen=True, slots=True)
class DemoLog:
    """A log: how many keys it has, and how many hours old its segments are.

    Those of ``cleaned`` have had a round; ``later`` came behind it, and the last one is active.
    """

    name: str
    keys: int
    cleaned: tuple[float, ...]
    later: tuple[float, ...]


LOGS = (
    DemoLog("orders-0", 300, (320, 300, 280), (220, 210, 200, 190, 1)),
    DemoLog("orders-1", 500, (320, 300, 280), (215, 205, 195, 1)),
    DemoLog("orders-2", 700, (320, 300, 280), (210, 200, 190, 1)),
    DemoLog("customers-0", 1400, (160, 150, 140, 130), (48, 40, 1)),
    DemoLog("prices-0", 600, (96, 72, 48), (6, 4, 2, 1)),
    DemoLog(DAMAGED, 200, (), (30, 25, 20, 1)),
)


def records(log: DemoLog, base: int, first_ms: int) -> Iterator[Record]:
    """Return the records of a segment: keys over and over, now and then a tombstone."""
    for offset in range(base, base + RECORDS):
        value = None if offset % 41 == 0 else b"value-%060d" % offset
        yield Record(offset, first_ms + offset, b"key-%05d" % (offset * 7919 % log.keys), value)


def write_segment(directory: Path, log: DemoLog, base: int, first_ms: int) -> None:
    """Write a segment with what a broker keeps beside it."""
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
    """Write the logs and their settings; what is older has been cleaned by a run of its own."""
    root.mkdir(parents=True)
    (root / "keeplast.toml").write_text(SETTINGS, encoding="utf-8")
    for log in LOGS:
        (root / log.name).mkdir()
        # The first of the later ones is active while the earlier ones are cleaned.
        for index, hours in enumerate((*log.cleaned, log.later[0])):
            first_ms = now_ms - round(hours * HOUR_MS)
            write_segment(root / log.name, log, index * RECORDS, first_ms)
    words = ("run", str(root), "--once", "--runner", "local", "--cores", "1")
    cleaned = sorted({log.name.rpartition("-")[0] for log in LOGS if log.cleaned})
    subprocess.run(
        [sys.executable, "-m", "keeplast", *words, "--config", "min.cleanable.dirty.ratio=0.0",
         *(word for topic in cleaned for word in ("--topic", topic))],
        check=True, capture_output=True, timeout=SECONDS_MAX,
    )  # fmt: skip
    for log in LOGS:
        for index, hours in enumerate(log.later[1:], start=len(log.cleaned) + 1):
            first_ms = now_ms - round(hours * HOUR_MS)
            write_segment(root / log.name, log, index * RECORDS, first_ms)
    damaged = root / DAMAGED / f"{RECORDS:020d}.log"
    data = damaged.read_bytes()
    damaged.write_bytes(data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    (root / "keeplast.toml").write_text(SETTINGS + SLOW, encoding="utf-8")


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
    """Write segments until ``ended``, which waits as long as it is told, or there were enough."""
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
            # The loop was told too, by the terminal: it ends its rounds and says so.
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
