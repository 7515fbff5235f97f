"""``keeplast configure`` on a directory whose daemon is running: what counts, and from when.

LC ids are those of DynamicBrokerReconfigurationTest, LM ids of LogManagerTest (cleaning.md 8.6).
"""

from __future__ import annotations

import pytest

from keeplast.config.layers import SettingSources
from keeplast.config.settings_file import change_settings
from keeplast.errors import InvalidError
from keeplast.log.files import LocalFiles
from tests.support.daemon_world import World


def change(world: World, topic: str | None, **values: str) -> None:
    """Write settings into the file of the directory; dots are underscores."""
    changes = {name.replace("_", "."): value for name, value in values.items()}
    change_settings(
        world.root, LocalFiles(), changes, topic=topic, sources=SettingSources(environment={})
    )


def test_lc07_settings_that_are_changed_together_count_together_and_stay(world: World) -> None:
    world.log(0, 2)

    def reconfigure(times: int) -> None:
        if times == 1:
            change(
                world,
                None,
                log_cleaner_backoff_ms="6000",
                log_cleaner_dedupe_buffer_size="20000000",
                log_cleaner_io_buffer_load_factor="0.8",
                log_cleaner_io_max_bytes_per_second="5e7",
                message_max_bytes="40000",
            )

    _, narrated, _ = world.until_idle(3, reconfigure)
    # The pause that had begun is not cut short.
    assert [15.0, 6.0, 6.0] == narrated.idle_seconds
    settings = world.select().settings
    cleaner = settings.cleaner_config()
    assert (20_000_000, 0.8, 5e7, 6000) == (
        cleaner.key_map_bytes,
        cleaner.load_factor,
        cleaner.io_bytes_per_second,
        cleaner.backoff_ms,
    )
    assert 40_000 == settings.topic_config("t").max_message_bytes
    _, narrated, _ = world.until_idle(1)
    assert [6.0] == narrated.idle_seconds


def test_a_refused_change_has_no_effect(world: World) -> None:
    world.log(0, 2)

    def spoil(times: int) -> None:
        if times == 1:
            with pytest.raises(InvalidError):
                change(world, "t", min_compaction_lag_ms="2", max_compaction_lag_ms="1")

    _, narrated, _ = world.until_idle(2, spoil)
    assert [] == narrated.of("warned")


def test_lm05_a_topic_that_is_compacted_no_more_is_left_alone_from_the_next_turn(
    world: World,
) -> None:
    world.log(0, 2)

    def switch(times: int) -> None:
        if times == 1:
            change(world, "t", cleanup_policy="delete")
            world.fill(0)
            world.fill(0)

    report, narrated, published = world.until_idle(2, switch)
    assert (1, ["t-0"], 10) == (report.rounds, narrated.of("chosen"), world.checkpoint(0))
    assert "cleanup.policy is delete" in published.facts(0).reason
    change(world, "t", cleanup_policy="compact")
    # Back again, the round goes on where the last one ended.
    report, _, _ = world.once()
    assert (1, 20) == (report.rounds, world.checkpoint(0))
