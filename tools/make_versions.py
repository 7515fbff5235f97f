"""Writes a small log whose records carry versions, late ones among them, for the pages to show.

python tools/make_versions.py DIRECTORY
"""

from __future__ import annotations

import struct
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from keeplast.log.append import LogAppender, NewRecord  # noqa: E402 - after the path is set
from keeplast.log.files import LocalFiles  # noqa: E402
from keeplast.model.topic_config import TopicConfig  # noqa: E402

START_MS = 1_790_000_000_000
KEYS = 40
UPDATES = 5


def record(key: int, version: int | None, at: int, *, deleted: bool = False) -> NewRecord:
    """Return an update of ``key``; without a version where a producer did not send one."""
    headers = () if version is None else ((b"version", struct.pack(">q", version)),)
    value = None if deleted else b'{"price":%d}' % (100 + (version or 0))
    return NewRecord(b"article-%03d" % key, value, START_MS + at * 1000, headers)


def main() -> None:
    """Write the partition ``prices-0``: every seventh key gets an old update after a newer one."""
    directory = Path(sys.argv[1]) / "prices-0"
    at = 0
    with LogAppender(directory, LocalFiles(), topic=TopicConfig(segment_bytes=4096)) as log:
        for version in range(UPDATES):
            for key in range(KEYS):
                at += 1
                log.append([record(key, version, at)])
        for key in range(0, KEYS, 7):
            at += 1
            log.append([record(key, 1, at)])
        for key in range(3, KEYS, 13):
            at += 1
            log.append([record(key, None, at, deleted=True)])
        log.append([record(5, 2**40, at + 1)])
        log.roll()


if __name__ == "__main__":
    main()
