"""A crash has cut off the swap of an undo: every command refuses, says what ends it, and that does.

What is there then has old values of keys that a later segment overwrites or deletes, and the later
segment has no name of a log.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from keeplast.api.open_log import open_log
from keeplast.errors import InterruptedSwapError
from tests.support.interrupted_swap import copied, crash_at, crash_points, is_open, undo
from tests.support.reader import read_partition
from tests.support.small_log import write_log
from tests.unit.cli.conftest import Command

SETTINGS = """\
[topic."t"]
"cleanup.policy" = "{policy}"
"undo.retention.ms" = 86400000
"segment.bytes" = 14
"segment.ms" = 315360000000
"min.cleanable.dirty.ratio" = 0.9
"""
STATE = {b"a": b"4", b"c": b"6"}
HELD = ("--topic", "t", "--at", "7", "--max-age", "1h")
ENDED = "finished or undid what an earlier run left in t-0"


@pytest.fixture
def data_dir(keeplast: Command, tmp_path: Path) -> Path:
    """A data directory in which an undo was killed while its segments got their names."""
    root = tmp_path / "data"
    directory = write_log(
        root, "t-0",
        {
            0: [(b"a", b"1"), (b"b", b"1"), (b"b", b"2")], 3: [(b"a", b"3"), (b"a", b"4")],
            5: [(b"b", None), (b"c", b"5")], 7: [(b"c", b"6")],
        },
    )  # fmt: skip
    (root / "keeplast.toml").write_text(SETTINGS.format(policy="compact"))
    assert (
        0
        == keeplast(
            "clean", root, "--despite", "dirty-ratio", "--receipt", tmp_path / "receipts"
        ).code
    )
    for point in crash_points(undo, directory, tmp_path / "scratch"):
        found = copied(directory, tmp_path / "killed")
        crash_at(point, undo, found)
        logs = sorted(int(path.stem) for path in found.glob("*.log"))
        if is_open(found) and logs[:1] == [0] and 5 not in logs:
            return found.parent
    raise AssertionError("no such point")


def test_files_alone_would_show_old_values_that_no_start_of_a_broker_leaves(data_dir: Path) -> None:
    assert STATE != read_partition(data_dir / "t-0").final_values()


@pytest.mark.rotates(4)
@pytest.mark.parametrize(
    "arguments",
    [
        ("export", "{dir}", "--to", "{out}"),
        ("explain", "{dir}", "b"),
        ("plan", "{dir}"),
        ("plan", "{dir}", "--exact"),
        ("status", "{dir}"),
        ("verify", "{dir}", "--receipt", "{receipt}"),
        ("verify", "{dir}", "{dir}"),
        ("inspect", "{dir}/t-0"),
        ("undo", "{dir}", "--list", "--topic", "t"),
        ("undo", "{dir}", "--dry-run", "--topic", "t"),
        ("clean", "{dir}", "--to", "{out}", "--despite", "dirty-ratio"),
        ("hold", "add", "{dir}", "h", "--topic", "t", "--at", "5", "--max-age", "1h"),
    ],
    ids=lambda arguments: "-".join(arguments[:3]).replace("{dir}", "DIR"),
)
def test_every_command_that_reads_names_the_swap_and_what_ends_it(
    keeplast: Command, data_dir: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    named = [
        each.format(dir=data_dir, out=tmp_path / "out", receipt=tmp_path / "receipts")
        for each in arguments
    ]
    ran = keeplast(*named)
    said = " ".join((ran.out + ran.err).split())
    assert 4 == ran.code, said
    assert "interrupted" in said
    assert "keeplast clean" in said
    assert is_open(data_dir / "t-0")


def test_the_api_refuses_too(data_dir: Path) -> None:
    log = open_log(data_dir / "t-0")
    for ask in (
        log.state, log.segments, log.log_start_offset, lambda: list(log.records()),
        lambda: list(log.batches()), lambda: log.state(end_offset=5),
    ):  # fmt: skip
        with pytest.raises(InterruptedSwapError, match="keeplast clean"):
            ask()


def test_status_has_a_state_for_it(keeplast: Command, data_dir: Path) -> None:
    ran = keeplast("status", data_dir, "--json")
    (found,) = ran.document["partitions"]
    assert (4, "interrupted") == (ran.code, found["state"])
    assert "a swap of segments was interrupted" in found["reason"]


@pytest.mark.parametrize(
    ("command", "more"),
    [(("clean",), ()), (("run",), ("--once",)), (("undo",), ("--topic", "t"))],
)
def test_commands_that_write_end_it(
    keeplast: Command, data_dir: Path, command: tuple[str, ...], more: tuple[str, ...]
) -> None:
    """Nothing is due: less is dirty than the ratio asks for, and what is so was cleaned once."""
    (data_dir / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 5\n")
    keeplast(*command, data_dir, *more)
    assert not is_open(data_dir / "t-0")
    found = open_log(data_dir / "t-0").state()
    assert {key: each.value for key, each in found.items()} == STATE


def test_run_ends_it_in_a_log_that_is_not_compacted_any_more(
    keeplast: Command, data_dir: Path
) -> None:
    (data_dir / "keeplast.toml").write_text(SETTINGS.format(policy="delete"))
    assert 4 == keeplast("export", data_dir, "--to", data_dir.parent / "out").code
    ran = keeplast("run", data_dir, "--once", code=0)
    assert ENDED in ran.out + ran.err
    assert read_partition(data_dir / "t-0").final_values() == STATE


def test_a_state_as_of_a_held_point_names_what_ends_an_interrupted_round(
    keeplast: Command, data_dir: Path
) -> None:
    assert 0 == keeplast("clean", data_dir).code
    assert 0 == keeplast("hold", "add", data_dir, "h", *HELD).code
    out = data_dir.parent / "out"
    ask = ("export", data_dir, "--to", out, "--ending-offsets", '{"t":{"0":7}}')
    assert 0 == keeplast(*ask).code
    (data_dir / "t-0" / f"{0:020d}.log.cleaned").write_bytes(b"")
    ran = keeplast(*ask, "--despite", "existing-target")
    said = " ".join((ran.out + ran.err).split())
    assert 4 == ran.code
    assert f"keeplast clean or keeplast run {data_dir}, or by starting the broker" in said
    again = keeplast("hold", "add", data_dir, "g", *HELD, code=4)
    assert "keeplast clean or keeplast run" in " ".join(again.err.split())
    assert 0 == keeplast("run", data_dir, "--once").code
    assert 0 == keeplast(*ask, "--despite", "existing-target").code
