"""The store of a stream processor is lost, and made again from a checkpoint of its changelog.

The processor adds up what each customer has ordered. Its totals lie in a store on its own disk;
every change goes to a compacted changelog too, and behind each batch comes a commit: a record that
names up to where the orders were read, and up to where the changelog belongs to that. An order must
not count twice, so a store is of use only together with the place in the orders that it fits. Then
the disk is lost in the middle of a batch.

    python examples/restore-store/restore.py DIRECTORY

The rule: the changelog is on stable storage before the commit that names its end is written. A
store that a crash has left and not lost is made again in the same way, because nobody knows whether
it has the last batch.
"""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

import keeplast
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles
from keeplast.log.lock import locked

ORDERS, CUSTOMERS, BATCH, SEED, CLOSES_SHARE = 1_000, 60, 200, 58, 0.04
LOST_AFTER = 75
START_MS = 1_700_000_000_000
COMPACT = keeplast.topic_config({"cleanup.policy": "compact"})
TOPICS = ("orders", "totals", "commits")
SETTINGS = "".join(f'[topic."{topic}"]\n"cleanup.policy" = "compact"\n' for topic in TOPICS)


class DiskLostError(Exception):
    """The processor's disk is gone, with the store on it."""


class Store:
    """Totals by customer, on the processor's own disk: the state store of a stream library."""

    def __init__(self, path: Path) -> None:
        """Open the store, or begin an empty one."""
        self._path = path
        self._rows = sqlite3.connect(path)
        self._rows.execute("CREATE TABLE IF NOT EXISTS totals (customer TEXT PRIMARY KEY, sum INT)")

    def get(self, customer: str) -> int:
        """Return the total of a customer, 0 of one who is not there."""
        found = self._rows.execute("SELECT sum FROM totals WHERE customer = ?", [customer])
        return sum(total for (total,) in found)

    def put(self, customer: str, total: int | None) -> None:
        """Set a total; None removes the customer."""
        if total is None:
            self._rows.execute("DELETE FROM totals WHERE customer = ?", [customer])
        else:
            self._rows.execute("REPLACE INTO totals VALUES (?, ?)", [customer, total])

    def commit(self) -> None:
        """Make what was put durable."""
        self._rows.commit()

    def all(self) -> dict[str, int]:
        """Return every total."""
        return dict(self._rows.execute("SELECT customer, sum FROM totals"))

    def close(self) -> None:
        """Leave the store as it was last committed."""
        self._rows.close()

    def lose(self) -> None:
        """Have the disk fail."""
        self.close()
        self._path.unlink()


def appended(data: Path, topic: str) -> LogAppender:
    """Return the end of a topic's one partition; the lock of ``data`` is held."""
    return LogAppender(data / f"{topic}-0", LocalFiles(), topic=COMPACT)


def take_orders(data: Path) -> list[dict[str, object]]:
    """Write all orders: some of them close the customer's account."""
    dice = random.Random(SEED)
    orders: list[dict[str, object]] = []
    with locked(data), appended(data, "orders") as log:
        for number in range(ORDERS):
            order: dict[str, object] = {"customer": f"c{dice.randrange(CUSTOMERS):02d}"}
            order |= {"closes": True} if dice.random() < CLOSES_SHARE else {
                "amount": dice.randrange(1, 100)
            }  # fmt: skip
            orders.append(order)
            value = json.dumps(order).encode()
            log.append([NewRecord(b"order-%d" % number, value, START_MS + number)])
    return orders


def process(data: Path, store: Store, *, first: int, lost_after: int | None = None) -> int:
    """Process a batch of orders from offset ``first`` on; return where the next one begins.

    DiskLostError when the disk fails behind ``lost_after`` of them: nothing is committed then.
    """
    orders = itertools.islice(
        keeplast.open_log(data / "orders-0").records(from_offset=first), BATCH
    )
    position = first
    with (
        locked(data),
        appended(data, "totals") as totals,
        appended(data, "commits") as commits,
    ):
        for number, record in enumerate(orders):
            if number == lost_after:
                raise DiskLostError
            order = json.loads(record.value or b"")
            customer = order["customer"]
            total = None if "closes" in order else store.get(customer) + order["amount"]
            store.put(customer, total)
            value = None if total is None else str(total).encode()
            totals.append([NewRecord(customer.encode(), value, record.timestamp)])
            position = record.offset + 1
        totals.flush()
        ends = {"orders": {"0": position}, "totals": {"0": totals.log_end_offset}}
        commits.append([NewRecord(b"processor", json.dumps(ends).encode(), START_MS + position)])
        commits.flush()
        store.commit()
    return position


def keeplast_run(*arguments: object) -> None:
    """Run keeplast and show its last lines; its own errors say what is wrong."""
    command = [sys.executable, "-m", "keeplast", *map(str, arguments)]
    print("$ keeplast", *arguments, flush=True)
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    print(*filter(None, done.stdout.splitlines()[-2:]), sep="\n", flush=True)


def back_up(data: Path, backup: Path) -> None:
    """Make the next version of the totals as of the last commit."""
    keeplast_run(
        "export", data, "--topic", "totals", "--checkpoint", "commits", "--incremental",
        "--to", backup,
    )  # fmt: skip


def restored_rows(backup: Path) -> Iterator[tuple[str, int]]:
    """Yield the totals of the version that counts."""
    for row in pq.read_table(backup / "current/totals", columns=["key", "value"]).to_pylist():
        yield row["key"].decode(), int(row["value"])


def last_commit(data: Path) -> dict[str, dict[str, int]]:
    """Return what the last commit names."""
    value = keeplast.open_log(data / "commits-0").state()[b"processor"].value
    document: dict[str, dict[str, int]] = json.loads(value or b"")
    return document


def totals_of(orders: list[dict[str, object]]) -> dict[str, int]:
    """Return what the totals must be, by a plain sum."""
    found: dict[str, int] = {}
    for order in orders:
        customer, amount = str(order["customer"]), order.get("amount")
        if isinstance(amount, int):
            found[customer] = found.get(customer, 0) + amount
        else:
            found.pop(customer, None)
    return found


def main(directory: Path) -> None:
    """Process, compact, back up, lose, restore, go on; AssertionError when a total is wrong."""
    data, backup = directory / "data", directory / "backup"
    data.mkdir(parents=True)
    (data / "keeplast.toml").write_text(SETTINGS)
    orders = take_orders(data)
    store = Store(directory / "store.db")
    position = 0
    for _ in range(2):
        for _ in range(2):
            position = process(data, store, first=position)
        keeplast_run(
            "clean", data, "--topic", "totals", "--despite", "dirty-ratio", "--roll-active"
        )
        back_up(data, backup)

    kept = store.all()
    try:
        process(data, store, first=position, lost_after=LOST_AFTER)
    except DiskLostError:
        store.lose()
    print(f"the disk is lost behind {LOST_AFTER} orders that no commit names")
    log = keeplast.open_log(data / "totals-0")
    end = {key.decode(): int(each.value or b"") for key, each in log.state().items()}
    assert end != kept, "the end of the changelog would do, and nothing is shown"
    wrong = sum(end.get(customer) != kept.get(customer) for customer in end.keys() | kept.keys())
    print(f"the end of the changelog counts them already: {wrong} totals would be wrong from there")

    back_up(data, backup)
    store = Store(directory / "store.db")
    for customer, total in restored_rows(backup):
        store.put(customer, total)
    store.commit()
    assert kept == store.all(), "the restored store is not the lost one"
    position = last_commit(data)["orders"]["0"]
    print(f"restored {len(kept)} totals, equal to the lost ones; orders go on from {position}")

    while position < len(orders):
        position = process(data, store, first=position)
    expected = totals_of(orders)
    assert expected == store.all(), "an order counts twice, or not at all"
    end = {key.decode(): int(each.value or b"") for key, each in log.state().items()}
    assert expected == end, "the changelog is not what the store is"
    store.close()
    print(f"all {len(orders)} orders are in {len(expected)} totals, each once")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]))
