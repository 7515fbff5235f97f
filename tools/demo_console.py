"""Makes a data directory for the console's demo: one log of each kind that operators ask about.

Run as ``python tools/demo_console.py DIRECTORY``, which must not exist. Rounds are slowed down, so
that somebody sees one.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from tests.support.small_log import Pair, write_log  # noqa: E402

SEGMENTS, RECORDS, KEYS = 6, 500, 97
SETTINGS = """\
[cluster]
"log.cleaner.io.max.bytes.per.second" = 100000

[topic.orders]
"cleanup.policy" = "compact"
"max.compaction.lag.ms" = 604800000

[topic.prices]
"cleanup.policy" = "compact"
"min.compaction.lag.ms" = 315360000000

[topic.customers]
"cleanup.policy" = "compact"
"min.cleanable.dirty.ratio" = 1.0

[topic.sessions]
"cleanup.policy" = "compact"
"""


def records(base: int) -> list[Pair]:
    """Return the records of a segment: some keys over and over, now and then a tombstone."""
    return [
        (b"key-%03d" % (n * n % KEYS), None if n % 41 == 0 else b"value-%09d" % n)
        for n in range(base, base + RECORDS)
    ]


def main(root: Path) -> None:
    """Write the logs and their settings."""
    root.mkdir(parents=True)
    for name in ("orders-0", "orders-1", "orders-2", "prices-0", "customers-0", "sessions-0"):
        write_log(root, name, {n * RECORDS: records(n * RECORDS) for n in range(SEGMENTS)})
    damaged = root / "sessions-0" / f"{RECORDS:020d}.log"
    data = damaged.read_bytes()
    damaged.write_bytes(data[:5000] + bytes([data[5000] ^ 1]) + data[5001:])
    (root / "keeplast.toml").write_text(SETTINGS, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
