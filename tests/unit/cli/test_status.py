"""``keeplast status``: the table, the document, and every way to ask."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from keeplast.cli.show.picture import draw_bar
from keeplast.clock import SystemClock
from keeplast.errors import CorruptError
from keeplast.format.checkpoint import encode_offsets
from keeplast.format.filename import CLEANER_CHECKPOINT
from keeplast.inspect import status as engine_status
from keeplast.log.files import LocalFiles
from keeplast.log.lock import locked
from keeplast.model.partition import TopicPartition
from keeplast.service.schedule import FAILING_NAME, failing, set_aside, write_set_aside
from tests.support.heard_calls import hear
from tests.support.small_log import EPOCH_MS, write_log
from tests.unit.cli.conftest import Command

NOW = ("--now-ms", EPOCH_MS + 90_000_000)
GOLDEN = Path(__file__).with_name("status_of_a_small_directory.txt")
SETTINGS = """\
[cluster]
"segment.ms" = 315360000000
[topic."orders"]
"cleanup.policy" = "compact"
"max.compaction.lag.ms" = 172800000
[topic."late"]
"cleanup.policy" = "compact"
"max.compaction.lag.ms" = 3600000
[topic."events"]
"cleanup.policy" = "delete"
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A clean and a dirty log of one topic, an overdue one, one that is not compacted."""
    root = tmp_path / "data"
    pairs = [(b"a", b"1"), (b"b", b"2"), (b"a", None)]
    write_log(root, "orders-0", {0: pairs, 3: pairs, 6: [(b"c", b"3")]})
    write_log(root, "orders-1", {0: pairs, 3: []})
    write_log(root, "late-0", {0: pairs, 3: [(b"c", b"3")]})
    write_log(root, "events-0", {0: pairs})
    clean = {TopicPartition("orders", 0): 3, TopicPartition("orders", 1): 3}
    (root / CLEANER_CHECKPOINT).write_bytes(encode_offsets(clean))
    (root / "keeplast.toml").write_text(SETTINGS)
    return root


def test_a_small_directory_looks_like_this(keeplast: Command, directory: Path) -> None:
    run = keeplast("status", directory, *NOW, "--details")
    assert (0, "") == (run.code, run.err)
    shown = "\n".join(line.rstrip() for line in run.out.splitlines()) + "\n"
    assert GOLDEN.read_text(encoding="utf-8") == shown.replace(str(directory), "data")


@pytest.mark.parametrize(
    ("columns", "left_out"),
    [
        (60, ["clean", "not yet", "ratio", "first dirty", "deadline"]),
        (80, ["not yet", "first dirty"]),
        (100, []),
        (200, []),
    ],
)
def test_each_partition_stays_one_line_on_a_narrow_screen(
    columns: int,
    left_out: list[str],
    keeplast: Command,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = keeplast("status", directory, *NOW).out.splitlines()
    heading, *rows = lines[2:7]
    assert ["late-0", "orders-0", "orders-1", "events-0"] == [row.split()[0] for row in rows]
    assert columns >= max(len(line) for line in (heading, *rows))
    notes = [line for line in lines if line.startswith("no room for: ")]
    names = ", ".join(left_out)
    wanted = [f"no room for: {names}; a wider screen or --json has it"] if left_out else []
    assert wanted == notes
    # The picture is in one piece, as wide as there is room for.
    assert 8 <= rows[0].count("▓") <= 16
    assert "▓" * rows[0].count("▓") in rows[0]


def test_a_long_name_folds_before_a_column_goes(
    keeplast: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    write_log(tmp_path, "n" * 100 + "-0", {0: [(b"a", b"1")], 1: []})
    out = keeplast("status", tmp_path, *NOW).out
    table = out.split("\n\n")[1].splitlines()
    assert "first dirty" in table[0]
    assert "no room for" not in out
    assert 120 >= max(len(line) for line in table)
    assert 100 == sum(line.count("n") for line in table[1:])


def test_one_partition_is_drawn(keeplast: Command, directory: Path) -> None:
    run = keeplast("status", directory, *NOW, "--topic", "orders", "--partition", 0)
    assert "^ first dirty offset 3" in run.out
    assert "events" not in run.out


def test_the_document_says_everything_of_every_partition(
    keeplast: Command, directory: Path
) -> None:
    run = keeplast("status", directory, *NOW, "--limit", 1, "--json")
    assert (0, "") == (run.code, run.err)
    document = run.document
    assert {"overdue": 1, "not due": 1, "clean": 1, "not compacted": 1} == {
        state: count for state, count in document["states"].items() if count
    }
    assert (1, False, EPOCH_MS + 90_000_000) == (
        document["version"],
        document["is_locked"],
        document["now_ms"],
    )
    by_name = {f"{p['topic']}-{p['partition']}": p for p in document["partitions"]}
    late = by_name["late-0"]
    assert {
        "topic", "partition", "state", "reason", "code", "log_start", "log_end", "first_dirty",
        "bound", "clean_bytes", "cleanable_bytes", "uncleanable_bytes", "ratio",
        "compaction_delay_ms", "deadline_ms", "leftover_bytes", "kept_until_ms", "told_from",
        "holds", "readers", "notes", "tombstones", "markers", "set_aside", "failing", "last_round",
        "erased_by", "error",
    } == set(late)  # fmt: skip
    assert set(late) == set(by_name["events-0"])
    # 25 hours, of which the lag takes one; the active segment is as old, and is left first.
    assert 24 * 3_600_000 == late["compaction_delay_ms"]
    assert EPOCH_MS + 3_600_000 == late["deadline_ms"]
    assert {
        "unit": "batches", "without_horizon": None, "retained": 0, "removable": 0,
        "first_horizon_ms": None, "last_horizon_ms": None,
    } == late["tombstones"]  # fmt: skip
    assert EPOCH_MS + 90_000_000 == late["erased_by"]["eligible_by_ms"]
    assert by_name["orders-1"]["erased_by"]["is_gone"]
    assert EPOCH_MS + 6 + 172_800_000 + 1 == by_name["orders-0"]["erased_by"]["eligible_by_ms"]
    assert by_name["events-0"]["log_end"] is None


def test_records_or_nothing_can_be_counted_instead(keeplast: Command, directory: Path) -> None:
    asked = ("status", directory, *NOW, "--topic", "late", "--json", "--tombstones")
    found = keeplast(*asked, "records").document["partitions"][0]["tombstones"]
    assert ("records", 1) == (found["unit"], found["without_horizon"])
    assert keeplast(*asked, "skip").document["partitions"][0]["tombstones"] is None


def test_a_directory_in_use_is_read_and_the_use_is_reported(
    keeplast: Command, directory: Path
) -> None:
    with locked(directory):
        run = keeplast("status", directory, *NOW)
        assert "holds the directory" in run.out
        assert keeplast("status", directory, *NOW, "--json").document["is_locked"]
    assert 0 == run.code


def test_a_log_that_cannot_be_read_stops_no_other(keeplast: Command, directory: Path) -> None:
    path = directory / "late-0" / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[8:12] = bytes(4)  # the size of the first batch
    path.write_bytes(data)
    run = keeplast("status", directory, *NOW, "--json")
    first, *rest = run.document["partitions"]
    assert (3, "late", "unreadable") == (run.code, first["topic"], first["state"])
    assert first["error"]["class"] == "CorruptError"
    assert 3 == len(rest)
    assert "unreadable" in keeplast("status", directory, *NOW).out


@pytest.mark.parametrize(("vanishings", "code"), [(2, 0), (3, 5)])
def test_files_that_a_round_takes_away_meanwhile_are_looked_for_again(
    keeplast: Command,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    vanishings: int,
    code: int,
) -> None:
    looks: list[str] = []

    def vanishing(*_: object, **__: object) -> None:
        looks.append("")
        if len(looks) <= vanishings:
            raise FileNotFoundError(2, "No such file or directory", "f.log")

    hear(monkeypatch, engine_status, "find_status", vanishing)
    keeplast("status", directory, *NOW, "--topic", "late", "--json", code=code)
    assert 3 == len(looks)


def test_a_partition_set_aside_is_shown_with_its_reason(keeplast: Command, directory: Path) -> None:
    partition = TopicPartition("orders", 1)
    error = CorruptError("bad batch", path="f.log", position=7)
    mark = set_aside(LocalFiles(), partition, directory / "orders-1", error, EPOCH_MS)
    write_set_aside(LocalFiles(), directory, {partition: mark})
    first = keeplast("status", directory, *NOW, "--json").document["partitions"][0]
    assert "set aside" == first["state"]
    explained = "skipped: a damaged file, or a defect of keeplast; until files change, or run "
    assert f"{explained}--retry" in keeplast("status", directory, *NOW).out.splitlines()
    assert ("f.log", 7, EPOCH_MS) == (
        first["set_aside"]["path"],
        first["set_aside"]["position"],
        first["set_aside"]["since_ms"],
    )
    (directory / "keeplast-set-aside").write_text("{")
    run = keeplast("status", directory, *NOW, "--json", code=0)
    assert "damaged" in run.err
    assert {"set aside": 0} == {
        state: count
        for state, count in json.loads(run.out)["states"].items()
        if state == "set aside"
    }


def test_a_log_whose_rounds_fail_is_reported_and_promised_nothing(
    keeplast: Command, directory: Path
) -> None:
    late = TopicPartition("late", 0)
    mark = failing(LocalFiles(), late, directory / "late-0", OSError("no room"), EPOCH_MS)
    write_set_aside(LocalFiles(), directory, {late: mark}, FAILING_NAME)
    first = keeplast("status", directory, *NOW, "--json").document["partitions"][0]
    assert ("late", "failing", "no room [K530]") == tuple(
        first[name] for name in ("topic", "state", "reason")
    )
    assert (EPOCH_MS, "OSError") == (first["failing"]["since_ms"], first["failing"]["class"])
    assert 86_400_000 == first["compaction_delay_ms"]
    assert (None, True) == (first["erased_by"]["by_ms"], first["erased_by"]["is_unknown"])
    shown = keeplast("status", directory, *NOW, "--topic", "late").out
    assert "old values: ? while its rounds fail" in shown
    assert "failing since" in shown
    assert "?" == next(line for line in shown.splitlines() if "late-0 " in line).split()[-1]


def test_watching_goes_on_with_the_clock(keeplast: Command, directory: Path) -> None:
    for other in (NOW, ("--json",)):
        run = keeplast("status", directory, "--watch", 1, *other, code=2)
        assert "--watch goes on with the clock" in run.err


def test_watching_ends_with_ctrl_c_and_that_is_no_failure(
    keeplast: Command, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []

    def sleep(_: SystemClock, seconds: float) -> None:
        waits.append(seconds)
        if len(waits) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(SystemClock, "sleep", sleep)
    run = keeplast("status", directory, "--watch", 7)
    assert (0, [7, 7, 7]) == (run.code, waits)
    assert 3 == run.out.count("4 partitions")


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ((0, 0, 0), "        "),
        ((1, 0, 0), "████████"),
        ((1, 10**9, 0), "█▓▓▓▓▓▓▓"),
        ((2, 1, 1), "████▓▓░░"),
    ],
)
def test_a_log_in_one_line(sizes: tuple[int, int, int], expected: str) -> None:
    assert expected == draw_bar(*sizes, width=8)
