"""Which of an owner's processes holds a partition, and what the others read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic import command
from msgspec.structs import replace
from sqlalchemy import create_engine, text

from keeplast.errors import FencedError, RefusedError
from keeplast.tier.metadata.database import open_database
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.metadata.ownership import Ownership
from keeplast.tier.state.holder import Holder, new_holder
from tests.support.manual_clock import ManualClock
from tests.support.metadata_contract import LINEAGE, NOW_MS, PARTITION, Opened

FAR = Holder("f" * 32, "pod-1", 7, "another machine", "1")


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Opened]:
    made = Opened(f"sqlite:///{tmp_path / 'meta.db'}")
    made.store.give_back()
    yield made
    made.store.close()


@pytest.fixture
def neighbour() -> Iterator[subprocess.Popen[bytes]]:
    """Another process of this machine."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    yield process
    process.kill()
    process.communicate()


def started(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[19]


def held_by(opened: Opened, holder: Holder) -> MetadataStore:
    """Let ``holder`` hold the partition in the name of ``a``."""
    store = MetadataStore(opened.engine, opened.clock, holder)
    store.take_over(PARTITION, epoch=0, owner="a", lineage=LINEAGE, log_end=0)
    return store


def test_a_partition_that_was_given_back_is_free_for_every_process_of_the_owner(
    opened: Opened,
) -> None:
    held_by(opened, FAR).give_back()
    state = Ownership(opened.store, "a").own(PARTITION, takes_over=False)
    assert (opened.store.holder, 0, NOW_MS) == (
        state.holder, state.leader_epoch, state.held_since_ms
    )  # fmt: skip


def test_a_neighbour_is_refused_while_it_runs_and_free_when_it_is_over(
    opened: Opened, neighbour: subprocess.Popen[bytes]
) -> None:
    """Killed, and not even waited for by its parent: there is no need to wait."""
    holder = replace(new_holder(), id="b" * 32, pid=neighbour.pid, started=started(neighbour.pid))
    held_by(opened, holder)
    own = Ownership(opened.store, "a")
    for succeeds in (False, True):
        with pytest.raises(RefusedError, match=f"owner=a epoch=0 process={neighbour.pid} host="):
            own.own(PARTITION, takes_over=False, succeeds=succeeds)
    neighbour.kill()
    while started_state(neighbour.pid) != "Z":
        pass
    assert opened.store.holds(own.own(PARTITION, takes_over=False))


def started_state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[0]


def test_a_number_that_another_process_has_by_now_is_over(
    opened: Opened, neighbour: subprocess.Popen[bytes]
) -> None:
    held_by(opened, replace(new_holder(), id="b" * 32, pid=neighbour.pid, started="1"))
    assert opened.store.holds(Ownership(opened.store, "a").own(PARTITION, takes_over=False))


def test_the_state_of_a_far_process_is_unknown_and_only_a_takeover_takes_its_place(
    opened: Opened,
) -> None:
    held_by(opened, FAR)
    own = Ownership(opened.store, "a")
    with pytest.raises(
        RefusedError, match=r"has not given it back.*process=7 host=pod-1 since=2023"
    ):
        own.own(PARTITION, takes_over=False)
    assert opened.store.holds(own.own(PARTITION, takes_over=False, succeeds=True))


def test_a_process_that_lost_a_partition_never_takes_it_back_by_itself(opened: Opened) -> None:
    own = Ownership(opened.store, "a")
    own.own(PARTITION, takes_over=False)
    far = held_by(opened, FAR)
    for _ in range(2):
        with pytest.raises(FencedError, match="is taken up again when that one has ended"):
            own.own(PARTITION, takes_over=False, succeeds=True)
    far.give_back()
    assert opened.store.holds(own.own(PARTITION, takes_over=False))


def test_a_second_store_of_one_process_goes_on_and_fences_the_first(opened: Opened) -> None:
    own = Ownership(opened.store, "a")
    own.own(PARTITION, takes_over=False)
    second = MetadataStore(opened.engine, opened.clock)
    assert second.holds(Ownership(second, "a").own(PARTITION, takes_over=False))
    with pytest.raises(FencedError):
        own.own(PARTITION, takes_over=False)


def test_another_owner_is_refused_with_any_holder(opened: Opened) -> None:
    with pytest.raises(RefusedError, match=r"another host owns the partition.*owner=a"):
        Ownership(opened.store, "b").own(PARTITION, takes_over=False, succeeds=True)
    state = Ownership(opened.store, "b").own(PARTITION, takes_over=True)
    assert ("b", 1) == (state.owner, state.leader_epoch)


def test_giving_back_never_fails(opened: Opened, tmp_path: Path) -> None:
    """Who cannot reach the database has ended all the same, and its own error is what counts."""
    own = Ownership(opened.store, "a")
    own.own(PARTITION, takes_over=False)
    held_by(opened, FAR)
    own.give_back()
    assert FAR == opened.state().holder
    assert opened.state().held_since_ms is not None
    opened.store.close()
    (tmp_path / "meta.db").unlink()
    own.give_back()


def test_a_system_without_a_list_of_processes_knows_nothing_of_them() -> None:
    here = replace(new_holder(), machine="")
    other = replace(here, id="b" * 32, pid=1)
    assert not here.is_comparable(other)
    assert not here.knows_over(replace(other, started="0"))
    assert here == Holder.of_json(here.id, here.to_json())


def test_a_store_of_the_version_before_is_brought_up_to_date(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is there has an owner and no holder; its owner goes on at its epoch."""
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    upgrade = command.upgrade
    monkeypatch.setattr(command, "upgrade", lambda config, revision: upgrade(config, "0001"))
    open_database(url).dispose()
    monkeypatch.undo()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO partitions (topic, partition, topic_id, leader_epoch, owner, version, "
                "log_start, remote_bytes, settings) VALUES ('t', 0, '0', 4, 'a', 1, 0, 0, '{}')"
            )
        )
    engine.dispose()
    store = MetadataStore(open_database(url), ManualClock(NOW_MS))
    state = store.load(PARTITION)
    assert (4, "a", None, None) == (
        state.leader_epoch, state.owner, state.holder, state.held_since_ms
    )  # fmt: skip
    with pytest.raises(FencedError):
        store.check_owner(PARTITION, epoch=4)
    assert 4 == Ownership(store, "a").own(PARTITION, takes_over=False).leader_epoch
    store.check_owner(PARTITION, epoch=4)
    store.close()
