"""ST-34: what is older than its objects changes nothing: restored backups, copies at work."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec import Struct

from keeplast.errors import ConflictError, RefusedError, UnavailableError
from keeplast.tier.metadata.collection import Marks, find_name, name_older
from keeplast.tier.metadata.database import open_database
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.object_store import MARKS, STORE_NAME, ObjectPlace
from keeplast.tier.objects.stores import open_objects
from tests.support.existing import existing
from tests.support.manual_clock import ManualClock
from tests.support.partition_maker import NOW_MS


class Place(Struct, frozen=True):
    """Metadata by name, all of them of the same objects."""

    root: Path
    objects: ObjectPlace

    def open(self, name: str = "meta") -> tuple[MetadataStore, Marks]:
        engine = open_database(f"sqlite:///{self.root / name}.db")
        store = MetadataStore(engine, ManualClock(NOW_MS))
        return store, Marks(store, self.objects)

    def back_up(self, store: MetadataStore, name: str) -> None:
        store.close()
        shutil.copy(self.root / "meta.db", self.root / f"{name}.db")

    @property
    def numbers(self) -> list[int]:
        return sorted(int(each.key.rpartition("/")[2]) for each in self.objects.list(MARKS))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, open_objects(f"file://{tmp_path / 'objects'}"))


def test_a_turn_writes_one_mark_and_the_older_ones_go(place: Place) -> None:
    _, marks = place.open()
    for expected in (1, 2, 3):
        marks.begin_turn()
        marks.committing()
        marks.committing()
        assert [expected] == place.numbers


def test_a_deletion_is_announced_after_a_mark_younger_than_the_last_commit(place: Place) -> None:
    _, marks = place.open()
    marks.committing()
    marks.deleting()
    assert [2] == place.numbers
    marks.deleting()
    assert [2] == place.numbers
    marks.committing()
    marks.deleting()
    assert [3] == place.numbers


def test_a_process_that_only_begins_writes_nothing(place: Place) -> None:
    _, marks = place.open()
    marks.beginning()
    assert [] == place.numbers


@pytest.mark.parametrize("act", [Marks.beginning, Marks.committing, Marks.deleting])
def test_a_restored_backup_is_refused(place: Place, act: Callable[[Marks], None]) -> None:
    store, marks = place.open()
    marks.committing()
    place.back_up(store, "backup")
    _, marks = place.open()
    marks.committing()
    _, restored = place.open("backup")
    with pytest.raises(
        RefusedError, match=r"keeplast repair --accept-metadata.*metadata_mark=1 objects_mark=2"
    ):
        act(restored)
    assert [2] == place.numbers


def test_metadata_from_before_there_were_marks_is_refused_once_there_are(place: Place) -> None:
    store, _ = place.open()
    place.back_up(store, "backup")
    _, marks = place.open()
    marks.committing()
    _, restored = place.open("backup")
    with pytest.raises(RefusedError):
        restored.beginning()


def test_a_copy_that_works_at_the_same_time_is_refused(place: Place) -> None:
    store, marks = place.open()
    marks.committing()
    place.back_up(store, "copy")
    _, marks = place.open()
    _, other = place.open("copy")
    marks.beginning()
    other.beginning()
    marks.committing()
    with pytest.raises(RefusedError):
        other.committing()
    marks.deleting()


def test_of_two_copies_that_raise_the_same_mark_at_once_one_goes_on(place: Place) -> None:
    """Neither has seen the other's when it decides; the put lets one of them in."""
    store, marks = place.open()
    marks.committing()
    place.back_up(store, "copy")
    mine, theirs = place.open()[0], place.open("copy")[0]
    first, second = mine.raise_mark("a" * 32), theirs.raise_mark("b" * 32)
    assert first[0] == second[0]
    Marks(mine, place.objects)._write(first)
    with pytest.raises(RefusedError):
        Marks(theirs, place.objects)._write(second)
    with pytest.raises(RefusedError):
        Marks(theirs, place.objects).beginning()
    Marks(mine, place.objects).beginning()


def test_a_crash_between_metadata_and_place_leaves_both_usable(place: Place) -> None:
    store, marks = place.open()
    marks.committing()
    store.raise_mark("c" * 32)
    store.raise_mark("d" * 32)
    _, again = place.open()
    again.deleting()
    assert [4] == place.numbers


def test_an_answer_that_was_lost_is_no_other_copy(place: Place) -> None:
    store, _ = place.open()

    class Losing:
        """Puts, and says that somebody else had."""

        def __getattr__(self, name: str) -> object:
            return getattr(place.objects, name)

        def put_new(self, key: str, data: bytes) -> bool:
            place.objects.put_new(key, data)
            return False

    Marks(store, Losing()).committing()  # type: ignore[arg-type]
    assert [1] == place.numbers


def test_two_hosts_of_one_store_raise_it_in_turn(place: Place) -> None:
    (_, a), (_, b) = place.open(), place.open()
    for _ in range(3):
        for marks in (a, b):
            marks.begin_turn()
            marks.committing()
            marks.deleting()
    assert [12] == place.numbers


def test_an_object_store_that_is_away_keeps_a_commit_from_being_made(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, marks = place.open()
    name_older(store, place.objects)

    with monkeypatch.context() as patch:
        patch.setattr(place.objects, "put_new", Mock(side_effect=UnavailableError("away")))
        with pytest.raises(UnavailableError):
            marks.committing()
    marks.committing()
    assert [2] == place.numbers


def test_metadata_that_was_accepted_goes_on_and_the_other_is_refused(place: Place) -> None:
    store, marks = place.open()
    marks.committing()
    place.back_up(store, "backup")
    _, newer = place.open()
    newer.committing()
    _, restored = place.open("backup")
    assert restored.is_refused()
    restored.accept()
    assert not restored.is_refused()
    restored.deleting()
    newer.begin_turn()
    with pytest.raises(RefusedError):
        newer.committing()


def test_objects_older_than_the_metadata_are_no_reason_to_refuse(place: Place) -> None:
    """They lack something, which reading and verifying say."""
    _, marks = place.open()
    for _ in range(3):
        marks.begin_turn()
        marks.committing()
    place.objects.delete([f"{MARKS}/{3:020d}"])
    place.objects.put_new(f"{MARKS}/{1:020d}", b"x" * 32)
    _, again = place.open()
    again.deleting()
    assert [4] == place.numbers


def test_a_foreign_object_is_passed_over_and_stays(place: Place) -> None:
    for name in ("README", "1", "9" * 21):
        place.objects.put_new(f"{MARKS}/{name}", b"x")
    _, marks = place.open()
    marks.committing()
    marks.deleting()
    assert 4 == len(list(place.objects.list(MARKS)))


def test_two_hosts_make_the_first_mark(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    store, marks = place.open()
    raised = store.raise_mark

    def overtaken(token: str, above: int = 0) -> tuple[int, str]:
        monkeypatch.setattr(store, "raise_mark", raised)
        raise ConflictError("it is there already")

    monkeypatch.setattr(store, "raise_mark", overtaken)
    marks.committing()
    assert [1] == place.numbers


def test_a_mark_that_went_before_its_answer_was_read_is_no_other_copy(place: Place) -> None:
    store, _ = place.open()
    later = Marks(place.open()[0], place.objects)

    class Overtaken:
        """Puts, says that somebody else had, and another host writes the next mark meanwhile."""

        def __getattr__(self, name: str) -> object:
            return getattr(place.objects, name)

        def put_new(self, key: str, data: bytes) -> bool:
            place.objects.put_new(key, data)
            later.committing()
            return False

    Marks(store, Overtaken()).committing()  # type: ignore[arg-type]
    assert [2] == place.numbers


def test_a_store_from_before_there_were_names_gets_one_with_its_next_commit(place: Place) -> None:
    store, marks = place.open()
    marks.beginning()
    assert None is find_name(store)
    marks.committing()
    name = existing(find_name(store))
    assert name.encode() == bytes(place.objects.read_range(STORE_NAME, 0, 32))
    marks.begin_turn()
    marks.committing()
    assert name == find_name(store)


def test_a_store_from_before_there_were_names_takes_no_other_stores_place(place: Place) -> None:
    store, marks = place.open()
    place.objects.put_new(STORE_NAME, b"f" * 32)
    for _ in range(2):
        marks.begin_turn()
        with pytest.raises(RefusedError, match="belong to another store"):
            marks.committing()
        assert (None, []) == (find_name(store), place.numbers)


def test_metadata_from_before_its_name_has_it_again_once_it_is_accepted(place: Place) -> None:
    store, _ = place.open()
    place.back_up(store, "backup")
    store, marks = place.open()
    marks.committing()
    name = find_name(store)
    restored, older = place.open("backup")
    with pytest.raises(RefusedError, match="older than its objects"):
        older.committing()
    assert None is find_name(restored)
    older.accept()
    older.begin_turn()
    older.committing()
    assert None is not name == find_name(restored)


def test_two_hosts_draw_one_name(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, theirs = place.open()[0], place.open()[0]
    looked = MetadataStore.find_fact
    calls: list[str] = []

    def overtaken(store: MetadataStore, key: str) -> str | None:
        found = looked(store, key)
        if store is mine and not calls:
            calls.append(key)
            name_older(theirs, place.objects)
        return found

    monkeypatch.setattr(MetadataStore, "find_fact", overtaken)
    name_older(mine, place.objects)
    assert None is not find_name(mine) == find_name(theirs)
