"""A reader within the least lag is given every message, and a bad release is put right (KIP-58).

Prices of articles are a compacted topic with ``min.compaction.lag.ms`` of an hour. A reader who is
50 minutes behind is given every price, although a round has just been done. Then a release writes
0 for every article: no round takes the prices before it within the hour, so they are read as of the
offset at which it began, and written again. Somebody who does not know that cleans without the lag;
what that round replaced is put back, since ``undo.retention.ms`` was set.

    python examples/a-least-lag/mistake.py DIRECTORY

The rule: the log decides. What is right is written to it again; no file is mended by hand.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keeplast
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles

MINUTE_MS = 60_000
TOPIC = "prices"
SETTINGS = {
    "cleanup.policy": "compact",
    "min.compaction.lag.ms": str(60 * MINUTE_MS),
    "undo.retention.ms": str(24 * 60 * MINUTE_MS),
}
ARTICLES = [b"article-%02d" % number for number in range(20)]

Prices = Mapping[bytes, bytes]


def append(data: Path, prices: Prices, ago_minutes: int) -> int:
    """Write prices as a producer did some minutes ago; return the offset of the first."""
    at_ms = int(time.time() * 1000) - ago_minutes * MINUTE_MS
    topic = keeplast.topic_config(SETTINGS)
    with LogAppender(data / f"{TOPIC}-0", LocalFiles(), topic=topic) as log:
        begin = log.log_end_offset
        log.append([NewRecord(key, value, at_ms) for key, value in prices.items()])
        # A broker does this by segment.ms: what is being written is never cleaned.
        log.roll()
    return begin


def told(*arguments: object) -> dict[str, Any]:
    """Run keeplast and return what it says; its own errors say what is wrong."""
    command = [sys.executable, "-m", "keeplast", *map(str, arguments), "--json"]
    done = subprocess.run(command, check=True, capture_output=True)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def given(data: Path, position: int) -> list[tuple[bytes | None, bytes | None]]:
    """Return what a reader is given from ``position`` on."""
    log = keeplast.open_log(data / f"{TOPIC}-0")
    return [(each.key, each.value) for each in log.records(from_offset=position)]


def state(data: Path, end_offset: int | None = None) -> dict[bytes, bytes | None]:
    """Return the prices, or those in front of an offset."""
    log = keeplast.open_log(data / f"{TOPIC}-0")
    return {key: each.value for key, each in log.state(end_offset=end_offset).items()}


def main(directory: Path) -> None:
    """Write, clean, read; err, read what was before, put it right; AssertionError if it is not."""
    data = directory / "data"
    data.mkdir(parents=True)
    lines = [f'"{name}" = "{value}"\n' for name, value in SETTINGS.items()]
    (data / "keeplast.toml").write_text(f'[topic."{TOPIC}"]\n' + "".join(lines))
    by_minute = {
        ago: {each: b"%d.%02d" % (ago, number) for number, each in enumerate(ARTICLES)}
        for ago in (180, 120, 50, 45, 40)
    }
    append(data, by_minute[180], 180)
    append(data, by_minute[120], 120)
    position = append(data, by_minute[50], 50)
    append(data, by_minute[45], 45)
    append(data, by_minute[40], 40)

    told("clean", data, "--topic", TOPIC, "--despite", "dirty-ratio")
    missed = [pair for ago in (50, 45, 40) for pair in by_minute[ago].items()]
    assert given(data, position) == missed
    assert given(data, 0) == [*by_minute[120].items(), *missed]
    print(f"cleaned: a reader who is 50 minutes behind is given all {len(missed)} messages")

    mistake = append(data, dict.fromkeys(ARTICLES, b"0"), 20)
    told("clean", data, "--topic", TOPIC, "--despite", "dirty-ratio")
    assert set(state(data).values()) == {b"0"}
    assert state(data, mistake) == by_minute[40]
    print(f"a release wrote 0 from offset {mistake} on: the prices in front of it are still told")

    told(
        "clean",
        data,
        "--topic",
        TOPIC,
        "--despite",
        "dirty-ratio",
        "--config",
        "min.compaction.lag.ms=0",
    )
    try:
        state(data, mistake)
    except keeplast.CompactionError as error:
        print(f"cleaned without the lag: {error}")
    else:
        raise AssertionError("prices were told that are gone")
    told("undo", data, "--topic", TOPIC)
    before = state(data, mistake)
    assert before == by_minute[40]
    append(data, {key: value for key, value in before.items() if value is not None}, 0)
    assert state(data) == by_minute[40]
    print("undone, and written again: every article has its price")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
