"""Two services that share topics are restored to a point at which their topics fit each other.

``shop`` takes orders, ``warehouse`` keeps the stock; both read both topics. An order and what it
takes from the shelf are two records in two topics, so only some offsets fit each other: those that
the shop writes down as a checkpoint. Then a release with a fault writes nonsense, and both go back.

    python examples/two-services/restore.py DIRECTORY

The rule: the hold is added before the checkpoint is written, so that no round can pass it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pyarrow.parquet as pq

from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles
from keeplast.model.topic_config import TopicConfig

ITEMS, ON_SHELF, START_MS = 5, 100, 1_700_000_000_000
ORDER_PARTITIONS = 2
COMPACT = TopicConfig(cleanup_policy=frozenset({"compact"}))
SETTINGS = "".join(
    f'[topic."{topic}"]\ncleanup.policy = "compact"\n' for topic in ("orders", "stock")
)


class Logs:
    """The topics, as files: ``orders`` of two partitions, ``stock`` and ``checkpoints`` of one."""

    def __init__(self, data: Path) -> None:
        names = [f"orders-{number}" for number in range(ORDER_PARTITIONS)]
        self._logs = {
            name: LogAppender(data / name, LocalFiles(), topic=COMPACT)
            for name in (*names, "stock-0", "checkpoints-0")
        }
        self._at_ms = START_MS

    def write(self, name: str, key: str, value: object) -> None:
        """Append a record of JSON to a partition."""
        self._at_ms += 1000
        text = json.dumps(value).encode()
        self._logs[name].append([NewRecord(key.encode(), text, self._at_ms)])

    def checkpoint(self) -> None:
        """Write down up to where all topics fit each other."""
        offsets: dict[str, dict[str, int]] = {}
        for name, log in self._logs.items():
            topic, _, number = name.rpartition("-")
            if topic != "checkpoints":
                offsets.setdefault(topic, {})[number] = log.log_end_offset
        self.write("checkpoints-0", "shop", offsets)

    def roll(self) -> None:
        """Begin new segments: only those that are left can be cleaned."""
        for log in self._logs.values():
            log.roll()

    def close(self) -> None:
        """Make everything durable."""
        for log in self._logs.values():
            log.close()


def trade(logs: Logs, orders: Mapping[str, int], number: int) -> dict[str, int]:
    """Take an order for one item, or change it; then take as much from the shelf."""
    item, quantity = f"item{number * 7 % ITEMS}", number * 37 % ON_SHELF
    partition = hash_of(item) % ORDER_PARTITIONS
    logs.write(f"orders-{partition}", item, {"quantity": quantity})
    # Whoever reads up to here sees an order, and the shelf as it was before.
    logs.write("stock-0", item, {"left": ON_SHELF - quantity})
    return {**orders, item: quantity}


def hash_of(item: str) -> int:
    """Return a number that is the same in every process."""
    return sum(item.encode())


def keeplast(*arguments: object) -> None:
    """Run keeplast; its own errors say what is wrong."""
    command = [sys.executable, "-m", "keeplast", *map(str, arguments)]
    print("$ keeplast", *arguments, flush=True)
    subprocess.run(command, check=True)


def state_of(exported: Path, topic: str) -> dict[str, dict[str, int]]:
    """Return what a service builds its store from: the last value of every key."""
    rows = pq.read_table(exported / topic, columns=["key", "value"]).to_pylist()
    return {row["key"].decode(): json.loads(row["value"]) for row in rows}


def main(directory: Path) -> None:
    """Write, hold, checkpoint, break, clean, go back; AssertionError when anything does not fit."""
    data, exported = directory / "data", directory / "restored"
    data.mkdir(parents=True)
    (data / "keeplast.toml").write_text(SETTINGS)
    logs = Logs(data)
    orders: dict[str, int] = {}
    for number in range(40):
        orders = trade(logs, orders, number)
    logs.roll()
    topics = ("--topic", "orders", "--topic", "stock")
    keeplast("hold", "add", data, "release-7", *topics, "--at", "now", "--max-age", "7d")
    for number in range(40, 45):
        orders = trade(logs, orders, number)
    logs.checkpoint()
    # The faulty release: orders without anything taken from the shelf, in topics that go on.
    for number in range(30):
        logs.write(f"orders-{number % ORDER_PARTITIONS}", f"item{number % ITEMS}", {"quantity": -1})
    logs.roll()
    logs.write("stock-0", "item0", {"left": -1})
    logs.close()
    keeplast("clean", data, *topics, "--despite", "dirty-ratio", "--runner", "local")
    keeplast("export", data, "--checkpoint", "checkpoints", "--to", exported, "--runner", "local")
    shop, warehouse = state_of(exported, "orders"), state_of(exported, "stock")
    assert {item: each["quantity"] for item, each in shop.items()} == orders
    for item, order in shop.items():
        assert order["quantity"] + warehouse[item]["left"] == ON_SHELF, item
    offsets = json.loads((exported / "_offsets.json").read_text())
    print(f"restored {len(shop)} items; both services go on from {json.dumps(offsets)}")
    keeplast("hold", "release", data, "release-7")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
