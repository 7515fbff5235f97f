"""How far rounds went is kept with a partition: what it is for the rounds of earlier versions."""

from __future__ import annotations

from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import create_engine, text

from keeplast.tier.metadata.database import open_database
from keeplast.tier.metadata.metadata_store import MetadataStore
from tests.support.manual_clock import ManualClock
from tests.support.partition_maker import NOW_MS, PARTITION


@pytest.mark.parametrize(("kind", "told_from"), [("raw", 0), ("cleaned", 100)])
def test_rounds_of_an_earlier_version_count_as_far_as_everything_that_was_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, told_from: int
) -> None:
    url = f"sqlite:///{tmp_path / 'meta.db'}"
    upgrade = command.upgrade
    monkeypatch.setattr(command, "upgrade", lambda config, revision: upgrade(config, "0008"))
    open_database(url).dispose()
    monkeypatch.undo()
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(
            text(
                "INSERT INTO partitions (id, topic, partition, topic_id, leader_epoch, owner, "
                "version, log_start, remote_bytes, settings) VALUES "
                f"(1, '{PARTITION.topic}', {PARTITION.partition}, '{'0' * 32}', 4, 'a', 1, 0, 20, "
                "'{}')"
            )
        )
        for name, base, last, its in (("a", 0, 59, kind), ("b", 60, 99, "raw")):
            connection.execute(
                text(
                    "INSERT INTO segments (id, partition_id, base_offset, last_offset, epochs, "
                    "size_bytes, max_timestamp_ms, mtime_ms, kind, leader_epoch, number, "
                    "cleaner_offsets, files, state, state_since_ms) VALUES (:id, 1, :base, :last, "
                    "'[[4, 0]]', 10, 0, 0, :kind, 4, 0, '{}', '{}', 'live', 0)"
                ),
                {"id": name * 32, "base": base, "last": last, "kind": its},
            )
            connection.execute(
                text("INSERT INTO routing VALUES (1, :base, :last, :id)"),
                {"id": name * 32, "base": base, "last": last},
            )
    engine.dispose()
    store = MetadataStore(open_database(url), ManualClock(NOW_MS))
    state = store.load(PARTITION)
    assert (0, 100, told_from) == (state.first_dirty(), state.remote_end, state.earliest_as_of)
    store.close()
