"""Readers in a thread of their own while rounds replace segments under them."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from keeplast.api.open_log import open_log
from tests.support.daemon_world import World
from tests.support.observed_files import UnsyncedFiles
from tests.support.waiting import wait_until

ROUNDS, READERS = 12, 2


class SlowSwaps(UnsyncedFiles):
    """Takes its time between the renames of a swap, so that readers fall into it."""

    def rename(self, source: Path, target: Path) -> None:
        time.sleep(0.004)
        super().rename(source, target)


def test_every_reader_sees_every_final_value_in_order(tmp_path: Path) -> None:
    world = World(tmp_path / "data", files=SlowSwaps())
    log = world.log(0)
    for i in range(ROUNDS):
        world.fill(0, first_key=i % 3)
    log.close()
    expected = world.state(0)
    seen: list[tuple[dict[bytes | None, bytes | None], list[int]]] = []
    errors: list[Exception] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            try:
                records = list(open_log(world.path(0)).records())
            except Exception as error:  # noqa: BLE001 - the test's own thread hands it over
                errors.append(error)
                return
            seen.append(
                ({each.key: each.value for each in records}, [each.offset for each in records])
            )

    readers = [threading.Thread(target=read) for _ in range(READERS)]

    def wait_for_reads() -> None:
        """Wait for one more than have begun: it begins from now on, however slow readers are."""
        enough = len(seen) + READERS + 1
        wait_until(lambda: len(seen) >= enough or bool(errors))

    for reader in readers:
        reader.start()
    try:
        wait_for_reads()
        for round_ in range(1, ROUNDS):
            # One more segment is below the high watermark each time.
            (world.root / "next").write_text(f"0\n1\nt 0 {5 * round_}\n")
            (world.root / "next").rename(world.root / "replication-offset-checkpoint")
            report, _, _ = world.once()
            assert {} == report.failures
            wait_for_reads()
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert [] == errors
    assert len(seen) > READERS * ROUNDS
    # Before the first round, and behind every second one, which leaves less.
    assert ROUNDS // 2 == len({len(offsets) for _, offsets in seen})
    for state, offsets in seen:
        assert expected == state
        assert sorted(set(offsets)) == offsets
