"""A store from a Python shell: what the page on tiers shows."""

from __future__ import annotations

import shutil
from contextlib import nullcontext
from pathlib import Path

import pytest

import keeplast
from keeplast.errors import InvalidError, RefusedError, UnavailableError
from keeplast.tier.metadata.collection import Marks
from keeplast.tier.objects.object_store import MARKS, StoredObject
from keeplast.tier.objects.stores import ObstoreObjects
from tests.support.existing import existing
from tests.support.refusing_s3 import refusing_s3

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


def test_of_two_first_inits_at_once_one_gets_the_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both found nothing there: neither's look had seen the other's name."""

    def finds_nothing(self: ObstoreObjects, key: str) -> StoredObject:
        raise FileNotFoundError(key)

    monkeypatch.setattr(ObstoreObjects, "stat", finds_nothing)
    place = str(tmp_path / "objects")
    for name in ("a.db", "b.db"):
        with (
            pytest.raises(RefusedError, match="belong to another store")
            if name == "b.db"
            else nullcontext(),
            keeplast.open_store(
                f"sqlite:///{tmp_path / name}", place, owner="me", topic_of=keeplast.topic_config
            ),
        ):
            pass


def test_a_second_import_does_not_pass_over_other_settings(tmp_path: Path) -> None:
    with keeplast.open_store(
        f"sqlite:///{tmp_path / 'meta.db'}", str(tmp_path / "objects"),
        owner="me", topic_of=keeplast.topic_config,
    ) as store:  # fmt: skip
        kept = {"cleanup.policy": "compact", "retention.ms": "5"}
        store.import_directory(ORDERS, SAMPLE, kept)
        before = store.state(ORDERS)
        with pytest.raises(RefusedError, match=r"retention.ms=6 \(kept: 5\)"):
            store.import_directory(ORDERS, SAMPLE, {"retention.ms": "6"})
        assert before == store.state(ORDERS)
        for same in ({}, kept, {"segment.bytes": "1073741824"}):
            store.import_directory(ORDERS, SAMPLE, same)
        store.configure(ORDERS, {"retention.ms": "6"})
        store.import_directory(ORDERS, SAMPLE, {"retention.ms": "6"})
        assert "6" == store.state(ORDERS).settings["retention.ms"]


def test_a_restored_backup_collects_nothing_and_commits_nothing(tmp_path: Path) -> None:
    """ST-34: the objects of a round that it does not know are live, for what was lost."""
    objects = tmp_path / "objects"

    def opened(name: str) -> keeplast.TieredStore:
        return keeplast.open_store(
            f"sqlite:///{tmp_path / name}", owner="me", topic_of=keeplast.topic_config
        )

    keeplast.open_store(
        f"sqlite:///{tmp_path / 'meta.db'}", str(objects), owner="me",
        topic_of=keeplast.topic_config,
    ).__exit__(None, None, None)  # fmt: skip
    with opened("meta.db") as store:
        store.import_directory(ORDERS, SAMPLE, {"cleanup.policy": "compact"})
    shutil.copy(tmp_path / "meta.db", tmp_path / "backup.db")
    with opened("meta.db") as store:
        store.clean(ORDERS, force=True, grace_ms=0)
    before = {path for path in objects.rglob("*") if path.is_file()}
    with opened("backup.db") as restored:
        for act in (restored.collect, restored.clean, restored.expire):
            with pytest.raises(RefusedError, match="older than its objects"):
                act(ORDERS)
        assert 4 == len(restored.state(ORDERS).routes)  # Reading is allowed.
    assert before == {path for path in objects.rglob("*") if path.is_file()}
    with opened("meta.db") as store:
        assert () == store.verify(ORDERS)


def test_a_backup_that_is_restored_in_the_middle_of_a_collection_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each deletion is announced behind a look at the place."""
    url, place = f"sqlite:///{tmp_path / 'meta.db'}", str(tmp_path / "objects")
    with keeplast.open_store(url, place, owner="me", topic_of=keeplast.topic_config) as store:
        store.import_directory(ORDERS, SAMPLE, {"cleanup.policy": "compact"})
        store.clean(ORDERS, force=True, grace_ms=0)
        marks = existing(store.restoration.marks)
        announced: list[int] = []
        deleting = type(marks).deleting

        def accepted_elsewhere(self: Marks) -> None:
            announced.append(len(announced))
            if len(announced) == 3:
                marks._objects.put_new(f"{MARKS}/{10**6:020d}", b"x" * 32)
            deleting(self)

        monkeypatch.setattr(type(marks), "deleting", accepted_elsewhere)
        with pytest.raises(RefusedError, match="older than its objects"):
            store.collect(ORDERS)
        assert 3 == len(announced)
        assert () == store.verify(ORDERS)


def test_a_place_where_nothing_may_be_deleted_is_no_place_for_a_store(tmp_path: Path) -> None:
    def opened(objects: str | None) -> keeplast.TieredStore:
        return keeplast.open_store(
            f"sqlite:///{tmp_path / 'a.db'}", objects, owner="me", topic_of=keeplast.topic_config,
            options=s3.options,
        )  # fmt: skip

    with refusing_s3() as s3:
        s3.denied = {"s3:DeleteObject"}
        for _ in range(2):
            with pytest.raises(UnavailableError, match="s3:DeleteObject"):
                opened(s3.url)
            assert ["keeplast-probe", "keeplast-store"] == sorted(s3.objects)
        with pytest.raises(InvalidError, match="this store is new"):
            opened(None)
        s3.denied = set()
        with opened(s3.url):
            assert ["keeplast-store"] == sorted(s3.objects)
