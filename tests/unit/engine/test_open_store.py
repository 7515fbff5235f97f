"""A store from a Python shell: what the page on tiers shows."""

from __future__ import annotations

from pathlib import Path

import pytest

import keeplast
from keeplast.errors import RefusedError

SAMPLE = Path(keeplast.__file__).parent / "samples" / "broker-4.3.0" / "orders-0"
ORDERS = keeplast.TopicPartition("orders", 0)


def test_a_round_needs_nothing_but_the_store(tmp_path: Path) -> None:
    with keeplast.open_store(
        f"sqlite:///{tmp_path / 'meta.db'}", str(tmp_path / "objects"),
        owner="me", topic_of=keeplast.topic_config,
    ) as store:  # fmt: skip
        store.import_directory(ORDERS, SAMPLE, {"cleanup.policy": "compact"})
        report = store.clean(ORDERS, force=True)
        assert report.stats is not None
        assert 75 == report.stats.messages_written
        assert ("not cleaned past offset 339: what was copied ends at 339",) == report.notes[1:]
        again = store.clean(ORDERS, force=True)
        assert (True, "nothing to clean: all that was copied is clean") == (
            again.skipped,
            again.reason,
        )
        store.export(ORDERS, tmp_path / "out" / "orders-0")
        assert f"TieredStore(ObstoreObjects('file://{tmp_path}/objects'), owner='me')" == repr(
            store
        )
    read = keeplast.open_log(tmp_path / "out" / "orders-0")
    assert 58 == len(read.state(keeplast.topic_config({"cleanup.policy": "compact"})))


def test_two_stores_do_not_share_a_place(tmp_path: Path) -> None:
    def opened(name: str, objects: str | None) -> keeplast.TieredStore:
        return keeplast.open_store(
            f"sqlite:///{tmp_path / name}", objects, owner="me", topic_of=keeplast.topic_config
        )

    place = str(tmp_path / "objects")
    with opened("a.db", place) as store:
        store.import_directory(ORDERS, SAMPLE, {"cleanup.policy": "compact"})
    with pytest.raises(RefusedError):
        opened("b.db", place)
    with opened("a.db", place) as store:
        assert () == store.verify(ORDERS)
    (tmp_path / "objects" / "keeplast-store").unlink()
    with opened("b.db", place) as other:
        assert () == other.partitions()
