"""``keeplast run --metrics-port``: a process that cleans, and what a scraper gets meanwhile."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path

from tests.support.flipped import flip
from tests.support.scrape import Samples, scrape
from tests.support.small_log import write_log
from tests.support.waiting import SECONDS_MAX, wait_for_line, wait_until


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "keeplast", "run", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def samples_when_both_have_ended(address: str) -> Samples:
    """Return what is given when one round is done and one has failed."""
    seen: list[Samples] = []

    def are_over() -> bool:
        seen.append(scrape(address))
        totals = [seen[-1][(f"keeplast_rounds_{how}_total", ())] for how in ("done", "failed")]
        return min(totals) >= 1

    wait_until(are_over, words=lambda: str(seen[-1]))
    return seen[-1]


def test_a_running_daemon_counts_finished_and_open_work(tmp_path: Path) -> None:
    pairs = [(b"a", b"1"), (b"a", b"2")]
    write_log(tmp_path, "t-0", {0: pairs, 2: pairs, 4: [(b"b", b"3")]})
    write_log(tmp_path, "t-1", {0: [(b"b", b"3")]})
    damaged = write_log(tmp_path, "t-2", {0: pairs, 2: pairs, 4: [(b"b", b"3")]})
    flip(damaged / f"{2:020d}.log", 70)
    process = start(
        tmp_path, "--runner", "local", "--metrics-port", 0, "--config", "cleanup.policy=compact",
        "--config", "segment.ms=9223372036854775807",
    )  # fmt: skip
    try:
        address = wait_for_line(process, r"^metrics at (http://127\.0\.0\.1:\S+)")[1]
        found = samples_when_both_have_ended(address)
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=SECONDS_MAX)
    assert 143 == process.returncode, (out, err)
    directory = (("logDirectory", str(tmp_path)),)
    expected = {
        ("keeplast_rounds_done_total", ()): 1,
        ("keeplast_rounds_failed_total", ()): 1,
        ("keeplast_removed_records_total", (("reason", "superseded"),)): 3,
        ("kafka_log_LogCleaner_cleaner_recopy_percent", ()): 25,
        ("kafka_log_LogCleanerManager_uncleanable_partitions_count", directory): 1,
    }
    assert expected == {key: found.get(key) for key in expected}
    assert found[("kafka_log_LogCleanerManager_uncleanable_bytes", directory)] > 0


def test_a_port_that_is_taken_is_a_mistake_in_an_argument(tmp_path: Path) -> None:
    write_log(tmp_path, "t-0", {0: [(b"a", b"1")]})
    with socket.create_server(("127.0.0.1", 0)) as taken:
        process = start(
            tmp_path, "--runner", "local", "--config", "cleanup.policy=compact",
            "--metrics-port", taken.getsockname()[1],
        )  # fmt: skip
        _, err = process.communicate(timeout=SECONDS_MAX)
    assert 2 == process.returncode
    assert "choose another --metrics-port" in err
