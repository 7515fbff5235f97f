"""``keeplast run --metrics-port``: a process that cleans, and what it tells a scraper meanwhile."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from tests.support.scrape import Samples, scrape
from tests.support.small_log import write_log

WAIT_SECONDS = 120


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "keeplast", "run", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def address_of(process: subprocess.Popen[str]) -> str:
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("metrics at "):
            return line.split()[-1]
    raise AssertionError(process.wait())


def samples_when_done(address: str, rounds: int) -> Samples:
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        samples = scrape(address)
        if samples[("keeplast_rounds_done_total", ())] >= rounds:
            return samples
        time.sleep(0.05)
    raise AssertionError("no round was told of")


def test_a_running_daemon_tells_what_it_has_done_and_what_is_left(tmp_path: Path) -> None:
    pairs = [(b"a", b"1"), (b"a", b"2")]
    write_log(tmp_path, "t-0", {0: pairs, 2: pairs, 4: [(b"b", b"3")]})
    write_log(tmp_path, "t-1", {0: [(b"b", b"3")]})
    damaged = write_log(tmp_path, "t-2", {0: pairs, 2: pairs, 4: [(b"b", b"3")]})
    data = bytearray((damaged / f"{2:020d}.log").read_bytes())
    data[70] ^= 1
    (damaged / f"{2:020d}.log").write_bytes(data)
    process = start(
        tmp_path, "--runner", "local", "--metrics-port", 0, "--config", "cleanup.policy=compact",
        "--config", "segment.ms=9223372036854775807",
    )  # fmt: skip
    try:
        address = address_of(process)
        assert address.startswith("http://127.0.0.1:")
        found = samples_when_done(address, 1)
        deadline = time.monotonic() + WAIT_SECONDS
        while found[("keeplast_rounds_failed_total", ())] < 1 and time.monotonic() < deadline:
            found = scrape(address)
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=WAIT_SECONDS)
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
        _, err = process.communicate(timeout=WAIT_SECONDS)
    assert 2 == process.returncode
    assert "choose another --metrics-port" in err
