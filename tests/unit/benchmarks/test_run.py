"""Both sides are measured in turn, what was stored makes the table, and doubtful rows go again."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from benchmarks.contestants import Measure
from benchmarks.machine import machine
from benchmarks.report import Result, Row, line, plain, results_of, table
from benchmarks.run import document, is_settled, known, main, marks, measure_row
from benchmarks.workload import Workload, WrittenLog, write_log
from keeplast.format.compression import Codec

MIB = 1 << 20
ROW = Row(Workload("a log", 100, 10, Codec.ZSTD, 64 << 10, segment_bytes=32 << 10), goal=6.0)
TAKEN = Measure(1.0, 0.5, 100 * MIB, MIB, 1000, 10, None, 1.0)


class Contestant:
    """Notes that it was asked, and leaves what it is given to leave."""

    def __init__(self, name: str, asked: list[str], *, left: int = 10) -> None:
        """Write the name to ``asked`` each time."""
        self.name = name
        self._asked = asked
        self._left = left

    def clean(self, partition: Path, workload: Workload, log: WrittenLog) -> Measure:
        """Clean nothing."""
        assert partition.is_dir()
        self._asked.append(self.name)
        return replace(TAKEN, messages_written=self._left)


def result(theirs: Sequence[float], ours: Sequence[float]) -> Result:
    return Result(
        ROW,
        tuple(replace(TAKEN, seconds=each, cpu_seconds=each) for each in theirs),
        *(tuple(replace(TAKEN, seconds=each, cpu_seconds=each) for each in ours),) * 3,
        keys=10,
        records=1000,
        largest_batch_bytes=500,
    )


SETTLED = result([12.0] * 5, [2.0, 2.1, 2.0, 2.0, 2.2])
DOUBTFUL = result([12.0, 12.0, 30.0, 12.0, 12.0], [2.0] * 5)


def test_sides_take_turns(tmp_path: Path) -> None:
    asked: list[str] = []
    log = write_log(ROW.workload, tmp_path / "log")
    names = ["keeplast", "kafka", "all_cores", "spark"]
    sides = [Contestant(name, asked) for name in names]
    found = measure_row(ROW, log, sides, pairs=5, place=tmp_path)
    assert names * 5 == asked
    assert [5] * 4 == [len(getattr(found, name)) for name in names]
    assert log.path.is_dir()


def test_sides_that_leave_something_else_are_no_pair(tmp_path: Path) -> None:
    log = write_log(ROW.workload, tmp_path / "log")
    sides = [Contestant("keeplast", []), Contestant("kafka", [], left=11)]
    with pytest.raises(RuntimeError, match="disagree on a log"):
        measure_row(ROW, log, sides, pairs=1, place=tmp_path)


def test_a_line_says_what_may_be_said() -> None:
    assert (
        "| a log | 8 MB/s, 12.00 (12.00) s | 6.00x (6.00x): 50 MB/s, 2.00 (2.00) s "
        "| 6.00x: 50 MB/s, 2.00 (2.00) s | 6.00x: 50 MB/s, 2.00 (2.00) s "
        "| 10 % (10 %) · 10 % · 10 % | 6.0x, reached |"
    ) == line(SETTLED)
    several = replace(SETTLED, row=replace(ROW, goal_of_all_cores=7.0))
    assert line(several).endswith("| 6.0x, reached; all cores: 7.0x, **missed** |")
    assert line(result([11.0] * 5, [2.0] * 5)).endswith("| 6.0x, **missed** |")
    assert line(DOUBTFUL).endswith(
        "· **150 %** | 6.0x, not judged: the pairs differ by more than a third |"
    )
    assert line(result([12.0], [2.0])).endswith("| 6.0x, not judged: fewer than 5 pairs |")
    side = "50 MB/s, 2.00 (2.00) s"
    assert f"| a log | - | {side} | {side} | {side} | - | 6.0x |" == line(result([], [2.0]))


def test_people_are_shown_how_many_times_as_fast_and_no_verdict() -> None:
    assert [
        "a log: 6.0 times as fast as Kafka's cleaner thread (goal 6); 6.0 times on all cores; "
        "6.0 times on Spark",
        "a log: 6.0 times as fast as Kafka's cleaner thread (goal 6; on a busy machine); "
        "6.0 times on all cores (on a busy machine); 6.0 times on Spark (on a busy machine)",
        "a log: 6.0 times as fast as Kafka's cleaner thread (goal 6; 1 of 5 pairs); "
        "6.0 times on all cores (1 of 5 pairs); 6.0 times on Spark (1 of 5 pairs)",
        "a log: keeplast 50 MB/s; all_cores 50 MB/s; spark 50 MB/s",
    ] == [plain(each) for each in (SETTLED, DOUBTFUL, result([12.0], [2.0]), result([], [2.0]))]


def test_the_table_follows_from_what_is_stored() -> None:
    found = json.loads(json.dumps(document([SETTLED, DOUBTFUL], machine())))
    assert [SETTLED, DOUBTFUL] == results_of(found)
    text = table(found)
    assert "Logs of 0 MiB; 5 pairs a row." in text
    assert line(SETTLED) in text
    assert line(DOUBTFUL) in text


def test_memory_of_all_keys_stands_below_the_table() -> None:
    row = replace(ROW, goal=None, is_memory_row=True)
    held = tuple(replace(each, held_bytes=3 * MIB) for each in SETTLED.keeplast)
    text = table(document([replace(SETTLED, row=row, keeplast=held)], machine()))
    assert "Memory, a log: 10 keys, peak 3 MiB above the loaded process; limit 256 MiB" in text


def test_only_rows_without_a_doubt_may_stay() -> None:
    assert is_settled(SETTLED)
    assert not is_settled(DOUBTFUL)
    assert not is_settled(result([12.0], [2.0]))
    assert not is_settled(result([], [2.0] * 5))
    assert not is_settled(replace(SETTLED, spark=DOUBTFUL.kafka))
    assert not is_settled(replace(SETTLED, all_cores=()))


@pytest.mark.parametrize("other", [{}, {"processor": "another"}, {"cpus": 999}])
def test_counts_of_another_machine_are_not_kept(tmp_path: Path, other: dict[str, Any]) -> None:
    here, out = machine(), tmp_path / "out.json"
    assert {} == known(out, here)
    out.write_text(json.dumps(document([SETTLED], {**here, **other})))
    assert ({} if other else {ROW: SETTLED}) == known(out, here)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--pairs", "0", "2"), ("--mark-mib", "0", "2"),
        ("--only", "no such log", "only=no such log"),
    ],
)  # fmt: skip
def test_a_number_below_one_and_a_name_that_no_row_has_are_refused(
    option: str, value: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["run", option, value])
    with pytest.raises(SystemExit, match=said):
        main()


def test_a_run_goes_on_with_the_doubtful_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second, *others = list(marks(MIB))
    there = [replace(SETTLED, row=first), replace(DOUBTFUL, row=second)]
    there += [replace(SETTLED, row=row) for row in others]
    out = tmp_path / "out.json"
    out.write_text(json.dumps(document(there, machine())))
    measured: list[Row] = []

    def measure_again(rows: list[Row], **_: object) -> Iterator[Result]:
        measured.extend(rows)
        yield from (replace(SETTLED, row=row) for row in rows)

    monkeypatch.setattr("benchmarks.run.run", measure_again)
    monkeypatch.setattr("sys.argv", ["run", "--mark-mib", "1", "--out", str(out), "--resume"])
    main()
    assert [second] == measured
    assert [first, second, *others] == [one.row for one in results_of(json.loads(out.read_text()))]
    main()
    assert [second] == measured
    assert not {"missed", "judged"} & set(re.findall(r"\w+", capsys.readouterr().out))
