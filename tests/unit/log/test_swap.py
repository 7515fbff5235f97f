"""The swap, operation by operation, and every state that a crash in it can leave."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from keeplast.format.filename import (
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    TXN_INDEX,
    Kind,
    segment_file,
)
from keeplast.format.txn_index import AbortedTransaction
from keeplast.log.recovery import recover_swap
from keeplast.log.swap import Replacement, commit_wave
from tests.support.observed_files import Crash, ObservedFiles, UnsyncedFiles
from tests.support.partition_maker import one, write_partition, write_segment, write_snapshot

KINDS: tuple[Kind, ...] = (LOG, INDEX, TIME_INDEX, TXN_INDEX)
ATTEMPT = "0a1b"
OLD = {base: one(base, b"a") + one(base + 1, b"b") for base in (0, 2, 4, 6, 8)}
ACTIVE = {10: one(10, b"z")}
FIRST_OUTPUT = one(1, b"b") + one(2, b"a") + one(3, b"b")
SECOND_OUTPUT = one(5, b"b") + one(7, b"b")


def stage(directory: Path, base: int, data: bytes, *, has_aborted: bool = False) -> dict[Kind, str]:
    """Put staged files of an output into the directory; return their names."""
    aside = directory.parent / "aside"
    aborted = [AbortedTransaction(1, base, base + 1, base + 2)] if has_aborted else []
    write_segment(aside, base, data, aborted=aborted)
    staged: dict[Kind, str] = {}
    for kind in KINDS:
        source = aside / segment_file(base, kind)
        if source.exists():
            staged[kind] = f"{source.name}.{ATTEMPT}.deleted"
            shutil.move(source, directory / staged[kind])
    return staged


def make(tmp_path: Path) -> tuple[Path, list[Replacement]]:
    """Five segments of which four become two, one of the outputs with aborted transactions."""
    directory = write_partition(tmp_path, {**OLD, **ACTIVE})
    for base in (2, 4, 6, 10):
        write_snapshot(directory, base)
    return directory, [
        Replacement(4, stage(directory, 4, SECOND_OUTPUT), (4, 6)),
        Replacement(0, stage(directory, 0, FIRST_OUTPUT, has_aborted=True), (0, 2)),
    ]


def logs(directory: Path) -> dict[int, bytes]:
    return {int(path.stem): path.read_bytes() for path in sorted(directory.glob("*.log"))}


BEFORE = {**OLD, **ACTIVE}
AFTER = {0: FIRST_OUTPUT, 4: SECOND_OUTPUT, 8: OLD[8], **ACTIVE}


def test_outputs_are_live_and_what_they_replace_may_be_removed(tmp_path: Path) -> None:
    directory, outputs = make(tmp_path)
    removed = commit_wave(UnsyncedFiles(), directory, outputs)
    assert AFTER == logs(directory)
    assert {path for path in directory.iterdir() if path.name.endswith(".deleted")} == set(removed)
    for path in removed:
        path.unlink()
    expected = {"leader-epoch-checkpoint"}
    for base in AFTER:
        expected |= {segment_file(base, kind) for kind in (LOG, INDEX, TIME_INDEX)}
    expected |= {segment_file(0, TXN_INDEX)}
    expected |= {segment_file(base, SNAPSHOT) for base in (4, 10)}
    assert expected == {path.name for path in directory.iterdir()}


def test_nothing_to_swap_touches_nothing(tmp_path: Path) -> None:
    directory, _ = make(tmp_path)
    files = ObservedFiles()
    assert commit_wave(files, directory, []) == []
    assert files.operations == []


def phase(operation: str) -> str:
    """Name the step of cleaning.md 4.2 that an operation belongs to."""
    verb, source, *target = operation.split()
    if verb != "rename":
        return verb
    if target[0].endswith(".cleaned"):
        return "announce"
    if target[0].endswith(".swap"):
        return "decide"
    if target[0].endswith(".deleted"):
        return "retire snapshot" if SNAPSHOT in source else "retire"
    return "install"


def test_order_of_the_steps(tmp_path: Path) -> None:
    directory, outputs = make(tmp_path)
    files = ObservedFiles()
    commit_wave(files, directory, outputs)
    phases = [phase(operation) for operation in files.operations]
    # What a start-up need not remove goes one by one, and every log gets its name for itself.
    retiring = ["retire", "flush"] * 3
    installing = ["install", "flush"] * 2 + ["install", "retire snapshot", "flush"]
    assert ["announce", "flush", "decide", "flush", *retiring, *installing] == [
        name for i, name in enumerate(phases) if i == 0 or phases[i - 1] != name
    ]


def bases(operations: list[str], name: str) -> list[int]:
    found = [int(op.split()[1][:20]) for op in operations if phase(op) == name]
    return [base for i, base in enumerate(found) if i == 0 or found[i - 1] != base]


def test_order_of_the_segments(tmp_path: Path) -> None:
    """Descending while the outcome is decided: a ``.cleaned`` left means a set is incomplete."""
    directory, outputs = make(tmp_path)
    files = ObservedFiles()
    commit_wave(files, directory, outputs)
    assert bases(files.operations, "announce") == [0, 4]
    assert bases(files.operations, "decide") == [4, 0]
    assert bases(files.operations, "retire") == [0, 2, 4, 6]
    assert bases(files.operations, "install") == [0, 4]
    assert bases(files.operations, "retire snapshot") == [2, 6]


def test_files_of_a_segment_are_renamed_log_first(tmp_path: Path) -> None:
    directory, outputs = make(tmp_path)
    files = ObservedFiles()
    commit_wave(files, directory, outputs)
    decided = [op.split()[1] for op in files.operations if phase(op) == "decide"]
    assert [f"{segment_file(0, kind)}.cleaned" for kind in KINDS] == decided[-4:]


def test_stray_cleaned_file_is_removed_before_anything_is_announced(tmp_path: Path) -> None:
    """Otherwise a start-up would void every completed swap at or above its base."""
    directory, outputs = make(tmp_path)
    stray = directory / "00000000000000000000.log.cleaned"
    stray.write_bytes(b"of a late attempt")
    files = ObservedFiles()
    commit_wave(files, directory, outputs)
    assert f"unlink {stray.name}" == files.operations[0]
    assert AFTER == logs(directory)


def count_operations(tmp_path: Path) -> int:
    directory, outputs = make(tmp_path)
    files = ObservedFiles()
    commit_wave(files, directory, outputs)
    return len(files.operations)


def test_crash_before_every_operation_leaves_the_old_log_or_the_new_one(tmp_path: Path) -> None:
    """X42, LL04 to LL08: all `.cleaned`, a mix, all `.swap`, sources half gone, half installed."""
    total = count_operations(tmp_path / "whole")
    outcomes = []
    for crash_at in range(total):
        directory, outputs = make(tmp_path / str(crash_at))
        with pytest.raises(Crash):
            commit_wave(ObservedFiles(crash_at=crash_at), directory, outputs)
        recover_swap(UnsyncedFiles(), directory)
        found = logs(directory)
        assert found in (BEFORE, AFTER), crash_at
        outcomes.append(found == AFTER)
        leftovers = (".cleaned", ".swap", ".deleted")
        assert [path for path in directory.iterdir() if path.name.endswith(leftovers)] == []
        assert recover_swap(UnsyncedFiles(), directory) == ()
    # Once decided, it stays decided.
    assert outcomes == sorted(outcomes)
    assert {False, True} == set(outcomes)


def test_crash_in_the_recovery_itself_changes_nothing(tmp_path: Path) -> None:
    for commit_crash in range(count_operations(tmp_path / "whole")):
        for recovery_crash in range(0, 40, 3):
            directory, outputs = make(tmp_path / f"{commit_crash}-{recovery_crash}")
            with pytest.raises(Crash):
                commit_wave(ObservedFiles(crash_at=commit_crash), directory, outputs)
            once = directory.parent / "once"
            shutil.copytree(directory, once)
            recover_swap(UnsyncedFiles(), once)
            try:
                recover_swap(ObservedFiles(crash_at=recovery_crash), directory)
            except Crash:
                recover_swap(UnsyncedFiles(), directory)
            assert {p.name: p.read_bytes() for p in once.iterdir()} == {
                p.name: p.read_bytes() for p in directory.iterdir()
            }
