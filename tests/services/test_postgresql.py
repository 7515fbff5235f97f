"""The metadata store's contract on a real PostgreSQL, and two owners at once."""

from __future__ import annotations

import json
import secrets
import threading
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from keeplast.clock import SystemClock
from keeplast.errors import CompactionError, ConflictError, FencedError, UnavailableError
from keeplast.model.partition import TopicPartition
from keeplast.tier.metadata.database import (
    MIGRATION_LOCK,
    SKEW_MS_MAX,
    ServerTime,
    open_database,
)
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.metadata.stored_logs import OBJECTS
from keeplast.tier.objects.stores import lasting_url
from keeplast.tier.state.partition_state import PartitionState
from tests.support import called
from tests.support.manual_clock import ManualClock
from tests.support.metadata_contract import (
    GRACE_MS,
    LINEAGE,
    NOW_MS,
    PARTITION,
    MetadataContract,
    Opened,
    segment,
)
from tests.support.waiting import SECONDS_MAX, run_at_once

pytestmark = [pytest.mark.services, pytest.mark.usefixtures("by_hand")]


class TestPostgreSQL(MetadataContract):
    """Everything that holds on SQLite holds here, with a clock that is moved by hand."""

    @pytest.fixture
    def url(self, database: str) -> str:
        return database


def test_the_servers_clock_is_the_stores(database: str) -> None:
    store = MetadataStore(open_database(database), SystemClock(), time=ServerTime())
    before = SystemClock().now_ms()
    found = store.clock.now_ms()
    assert before - 1 <= found <= SystemClock().now_ms() + 1
    store.close()


@pytest.mark.parametrize("ahead_ms", [2 * SKEW_MS_MAX, -2 * SKEW_MS_MAX])
def test_a_host_that_differs_from_the_server_is_reported(database: str, ahead_ms: int) -> None:
    clock = ManualClock(SystemClock().now_ms() + ahead_ms)
    store = MetadataStore(open_database(database), clock, time=ServerTime())
    with pytest.raises(UnavailableError, match="clock"):
        store.clock.now_ms()
    store.close()


def test_a_grace_is_counted_by_the_server(database: str) -> None:
    """The host's clock moves by most of the bound meanwhile."""
    opened = Opened(database)
    source = segment(0, 9)
    opened.copy(source)
    clock = ManualClock(SystemClock().now_ms())
    store = MetadataStore(opened.engine, clock, opened.store.holder, ServerTime())
    store.commit_swap(
        PARTITION, secrets.token_hex(16), epoch=0, sources=[source.segment_id],
        outputs=[segment(0, 9)], grace_ms=60_000,
    )  # fmt: skip
    clock.advance(SKEW_MS_MAX - 60_000)
    assert not store.start_delete(PARTITION, epoch=0, segment_id=source.segment_id)
    (orphan,) = store.orphans(PARTITION)
    assert abs(orphan.not_before_ms - 60_000 - SystemClock().now_ms()) < 60_000
    opened.store.close()


def test_of_many_that_take_over_at_one_epoch_one_does(database: str) -> None:
    Opened(database).store.close()
    outcomes: list[str] = []

    def race(name: str) -> None:
        store = MetadataStore(open_database(database), ManualClock(NOW_MS))
        try:
            store.take_over(PARTITION, epoch=5, owner=name, lineage=LINEAGE, log_end=0)
            outcomes.append("owns")
        except FencedError:
            outcomes.append("fenced")
        finally:
            store.close()

    run_at_once(partial(race, f"host-{i}") for i in range(8))
    assert sorted(outcomes) == ["fenced"] * 7 + ["owns"]


def test_of_two_swaps_of_one_segment_one_happens(database: str) -> None:
    """ST-7, ST-8: who comes second finds that what it read is not live any more."""
    opened = Opened(database)
    source = segment(0, 9)
    opened.copy(source)
    outcomes: list[str] = []
    start = threading.Barrier(4, timeout=SECONDS_MAX)

    def swap(store: MetadataStore) -> None:
        start.wait()
        try:
            store.commit_swap(
                PARTITION, secrets.token_hex(16), epoch=0, sources=[source.segment_id],
                outputs=[segment(0, 9)], grace_ms=GRACE_MS,
            )  # fmt: skip
            outcomes.append("swapped")
        except ConflictError:
            outcomes.append("conflict")
        except CompactionError as error:
            outcomes.append(str(error))
        finally:
            store.close()

    holder = opened.store.holder
    stores = [MetadataStore(open_database(database), ManualClock(NOW_MS), holder) for _ in range(4)]
    run_at_once(partial(swap, store) for store in stores)
    assert sorted(outcomes) == ["conflict"] * 3 + ["swapped"]
    assert len(opened.routes()) == 1
    opened.store.close()


def test_a_state_is_that_of_one_moment(database: str) -> None:
    """Readers take no lock, and must not see the routes of one moment with segments of another."""
    opened = Opened(database)
    live = segment(0, 9)
    opened.copy(live)
    is_over = threading.Event()
    torn: list[PartitionState] = []

    def read() -> None:
        store = MetadataStore(open_database(database), ManualClock(NOW_MS))
        while not is_over.is_set():
            state = store.load(PARTITION)
            if {route.segment_id for route in state.routes} != set(state.segments):
                torn.append(state)
        store.close()

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(150):
        made = segment(0, 9)
        opened.store.commit_swap(
            PARTITION, secrets.token_hex(16), epoch=0, sources=[live.segment_id], outputs=[made],
            grace_ms=GRACE_MS,
        )  # fmt: skip
        live = made
    is_over.set()
    for reader in readers:
        reader.join(SECONDS_MAX)
    assert [] == torn
    opened.store.close()


def test_a_user_who_may_only_read_looks_at_a_store_and_changes_nothing(
    database: str, tmp_path: Path
) -> None:
    objects = tmp_path / "objects"
    objects.mkdir()
    opened = Opened(database)
    opened.copy(segment(0, 9))
    opened.store.fact(OBJECTS, lambda: lasting_url(str(objects)))
    looker = f"looker{secrets.token_hex(4)}"
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {looker} LOGIN")
        connection.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {looker}")
        # Who writes a migration holds this lock for as long as it takes.
        connection.execute(f"SELECT pg_advisory_lock({MIGRATION_LOCK})")
        url = urlunsplit(
            urlsplit(database)._replace(
                netloc=f"{looker}@{urlsplit(database).netloc.rpartition('@')[2]}"
            )
        )
        found = called.run("status", url, "--json", code=0)
        (row,) = json.loads(found.stdout)["partitions"]
        assert PARTITION == TopicPartition(row["topic"], row["partition"])
    looking = MetadataStore(open_database(database, only_looks=True), ManualClock(NOW_MS))
    with pytest.raises(UnavailableError, match="read-only"):
        looking.fact("a", lambda: "b")
    looking.close()
    opened.store.close()
