"""``plan`` and ``clean``: options to requests, reports to output and exit codes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import pytest
from msgspec.structs import replace

from keeplast.cleaner.reasons import RatioTooLow
from keeplast.cli.frame.command import Terminated
from keeplast.errors import (
    CompactionError,
    ConflictError,
    CorruptError,
    InvalidError,
    InvariantError,
    RefusedError,
    UnavailableError,
)
from keeplast.log.paths import user_name
from keeplast.rewrite.stats import Reasons, Stats
from keeplast.survey.report import Estimate, GroupReport, RoundReport, describe_error
from tests.unit.cli.conftest import Command, FakeCoordinator

COMPACT = ("--config", "cleanup.policy=compact", "--runner", "local")
CLEANED = RoundReport(
    first_dirty=0,
    uncleanable=4,
    bound=4,
    end_offset=4,
    log_start=0,
    log_end=5,
    clean_bytes=0,
    cleanable_bytes=280,
    ratio=1.0,
    stats=Stats(
        messages_read=4,
        bytes_read=20_000,
        messages_written=3,
        bytes_written=15_000,
        tombstones_read=1,
        tombstones_written=1,
        total_seconds=0.5,
    ),
    reasons=Reasons(superseded_records=1, superseded_bytes=70),
    groups=(GroupReport((0, 2), 280),),
)


def failed(error: CompactionError) -> Callable[[], RoundReport]:
    return lambda: RoundReport(error=describe_error(error), failure=error)


def test_a_target_inside_of_a_brokers_directory_is_refused(
    keeplast: Command,
    coordinator: FakeCoordinator,
    data_dir: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    (data_dir / "meta.properties").write_bytes(b"version=1\n")
    link = tmp_path_factory.mktemp("elsewhere") / "link"
    link.symlink_to(data_dir)
    for target in (data_dir / "out", link / "out"):
        run = keeplast("clean", data_dir, *COMPACT, "--to", target, code=4)
        assert "give a place outside of it" in run.err
        assert ([], False) == (coordinator.requests, target.exists())


def test_options_become_the_request(
    keeplast: Command, coordinator: FakeCoordinator, data_dir: Path
) -> None:
    run = keeplast(
        "clean", data_dir, *COMPACT, "--cores", 3, "--now-ms", 7, "--high-watermark", 5,
        "--log-start-offset", 1, "--first-dirty-offset", 2, "--uncleanable-offset", 3,
        "--key-map-bytes", "1k", "--memory", "64m", "--rounds", 4, "--roll-active",
        "--despite", "dirty-ratio",
        "--to", data_dir / "out", "--receipt", data_dir / "receipt",
        "--config", "segment.bytes=500",
    )  # fmt: skip
    said = [line for line in run.err.splitlines() if not line.startswith("note: ")]
    assert (0, []) == (run.code, [line for line in said if line != "cleaning t-0: bound ?"])
    (request,) = coordinator.requests
    (partition,) = request.partitions
    assert "t-0" == str(partition.partition)
    assert data_dir / "t-0" == partition.path
    assert 500 == partition.topic.segment_bytes
    assert partition.topic.is_compacted
    assert 1024 == partition.cleaner.key_map_bytes
    assert (7, 5, 1, 2, 3) == (
        request.now_ms,
        request.high_watermark,
        request.log_start_offset,
        request.first_dirty_offset,
        request.uncleanable_offset,
    )
    assert (64 << 20, 4, True, True) == (
        request.memory_bytes,
        request.rounds,
        request.roll_active,
        request.force,
    )
    assert (data_dir / "out", data_dir / "receipt") == (request.target, request.receipt)
    assert [{"runner": "local", "master": None, "cores": 3}] == coordinator.opened


def test_defaults_are_one_round_on_threads_of_this_process(
    keeplast: Command, coordinator: FakeCoordinator, data_dir: Path
) -> None:
    keeplast("clean", data_dir, "--config", "cleanup.policy=compact")
    (request,) = coordinator.requests
    assert (1, 256 << 20, None, False) == (
        request.rounds,
        request.memory_bytes,
        request.target,
        request.force,
    )
    assert None is request.partitions[0].cleaner.key_map_bytes
    assert [{"runner": "local", "master": None, "cores": None}] == coordinator.opened


def test_until_done_has_no_number_of_rounds(
    keeplast: Command, coordinator: FakeCoordinator, data_dir: Path
) -> None:
    keeplast("clean", data_dir, *COMPACT, "--until-done")
    assert None is coordinator.requests[0].rounds


def test_plan_is_exact_when_asked(
    keeplast: Command, coordinator: FakeCoordinator, data_dir: Path
) -> None:
    keeplast("plan", data_dir, *COMPACT)
    assert False is coordinator.exact
    keeplast("plan", data_dir, *COMPACT, "--exact")
    assert True is coordinator.exact


def test_the_summary_says_before_and_after(
    keeplast: Command, coordinator: FakeCoordinator, data_dir: Path
) -> None:
    coordinator.answer = lambda: CLEANED
    run = keeplast("clean", data_dir, *COMPACT, code=0)
    assert "19.5 KiB -> 14.6 KiB" in run.out
    assert "4 -> 3" in run.out
    assert "superseded by another record" in run.out
    assert "~" not in run.out
    assert "cleaning t-0: 19.5 KiB -> 14.6 KiB, 4 -> 3 records, clean to offset 4" in run.err


ESTIMATED = replace(
    CLEANED,
    end_offset=None,
    stats=None,
    reasons=None,
    disk_bytes=2048,
    estimate=Estimate(
        sampled_bytes=20_000,
        sampled_records=4,
        messages_read=4000,
        messages_written=3000,
        bytes_read=20_000,
        bytes_written=15_000,
        tombstones_read=1,
        tombstones_written=None,
        superseded_records=1000,
        tombstone_records=0,
        aborted_records=0,
        keyless_records=0,
        distinct_keys=700,
        key_map_bytes=25_200,
        index_seconds=0.2,
        seconds=0.5,
    ),
)


def test_a_plan_marks_what_it_estimates_and_nothing_else(
    keeplast: Command, coordinator: FakeCoordinator, data_dir: Path
) -> None:
    coordinator.answer = lambda: ESTIMATED
    estimated = keeplast("plan", data_dir, *COMPACT).out
    for shown in ("~19.5 KiB -> ~14.6 KiB", "~4,000 -> ~3,000", "~1 -> ?", "~700", "~24.6 KiB"):
        assert shown in estimated
    assert "~0.5" in estimated
    assert "0..5" in estimated
    assert " 2,048 B" in estimated
    coordinator.answer = lambda: CLEANED
    counted = keeplast("plan", data_dir, *COMPACT, "--exact").out
    assert "19.5 KiB -> 14.6 KiB" in counted
    assert "~" not in counted


def test_the_document_of_a_plan_has_estimates_apart_from_counts(
    keeplast: Command, coordinator: FakeCoordinator, data_dir: Path
) -> None:
    coordinator.answer = lambda: ESTIMATED
    (partition,) = keeplast("plan", data_dir, *COMPACT, "--json").document["partitions"]
    assert (None, None) == (partition["stats"], partition["reasons"])
    assert (700, None) == (
        partition["estimate"]["distinct_keys"],
        partition["estimate"]["tombstones_written"],
    )
    assert 2048 == partition["disk_bytes"]


def test_json_is_one_document_and_progress_goes_to_stderr(
    keeplast: Command, coordinator: FakeCoordinator, data_dir: Path
) -> None:
    coordinator.answer = lambda: CLEANED
    for command in ("plan", "clean"):
        run = keeplast(command, data_dir, *COMPACT, "--json")
        (partition,) = run.document["partitions"]
        assert 1 == run.document["version"]
        assert ("t", 0, 4, False) == (
            partition["topic"],
            partition["partition"],
            partition["end_offset"],
            partition["skipped"],
        )
        assert 20_000 == partition["stats"]["bytes_read"]
        assert 1 == len(partition["rounds"])
        assert run.err.endswith("in 0.5 s\n")


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidError("a"), 2),
        (CorruptError("b", path="x.log", position=7), 3),
        (RefusedError("c"), 4),
        (UnavailableError("d"), 5),
        (ConflictError("e"), 5),
        (InvariantError("f"), 5),
    ],
)
def test_the_exit_code_follows_the_partitions_error(
    keeplast: Command,
    coordinator: FakeCoordinator,
    data_dir: Path,
    error: CompactionError,
    code: int,
) -> None:
    coordinator.answer = failed(error)
    run = keeplast("clean", data_dir, *COMPACT, "--json", code=code)
    (partition,) = run.document["partitions"]
    assert type(error).__name__ == partition["error"]["class"]
    assert f"error: t-0: {error}" in run.err


def test_the_worst_partition_decides_and_all_are_named(
    keeplast: Command, coordinator: FakeCoordinator, data_dir: Path
) -> None:
    (data_dir / "t-1").mkdir()
    for file in (data_dir / "t-0").iterdir():
        (data_dir / "t-1" / file.name).write_bytes(file.read_bytes())
    answers = iter([failed(CorruptError("damage", path="x.log"))(), CLEANED])
    coordinator.answer = lambda: next(answers)
    run = keeplast("clean", data_dir, *COMPACT, "--json", code=3)
    assert ["CorruptError", None] == [
        (each["error"] or {}).get("class") for each in run.document["partitions"]
    ]


def test_a_round_whose_error_crossed_a_process_boundary_keeps_its_code(
    keeplast: Command, coordinator: FakeCoordinator, data_dir: Path
) -> None:
    coordinator.answer = lambda: RoundReport(error=describe_error(CorruptError("damage")))
    assert 3 == keeplast("clean", data_dir, *COMPACT).code


def test_a_skipped_partition_is_done_and_says_why(
    keeplast: Command, coordinator: FakeCoordinator, data_dir: Path
) -> None:
    coordinator.answer = lambda: RoundReport(skipped=True, cause=RatioTooLow(0.2, 0.5))
    run = keeplast("clean", data_dir, *COMPACT, code=0)
    assert "skipped: dirty ratio 0.200 is not above" in run.out


def test_an_unknown_policy_is_refused_before_anything_starts(
    keeplast: Command, coordinator: FakeCoordinator, data_dir: Path
) -> None:
    run = keeplast("clean", data_dir, "--runner", "local", "--json", code=4)
    (partition,) = run.document["partitions"]
    assert "RefusedError" == partition["error"]["class"]
    assert "--topic t --config cleanup.policy=compact" in run.err
    assert [] == coordinator.opened


@pytest.mark.parametrize(
    "arguments",
    [
        ("--memory", "12q"),
        ("--key-map-bytes", "-5"),
        ("--rounds", "2", "--until-done"),
        ("--config", "segmnt.bytes=5"),
        ("--config", "segment.bytes=5"),
        ("--config", "compaction.strategy=header"),
        ("--topic", "elsewhere"),
        ("--partition", "9"),
        ("--master", "local[2]"),
        ("--config-file", "/nowhere/keeplast.toml/x"),
    ],
)
def test_an_unusable_argument_is_a_usage_error_with_a_document(
    keeplast: Command, coordinator: FakeCoordinator, data_dir: Path, arguments: tuple[str, ...]
) -> None:
    run = keeplast("plan", data_dir, *COMPACT, *arguments, "--json", code=2)
    assert [] == run.document["partitions"]
    assert run.document["error"]["class"]
    assert run.err.startswith("error: ")
    assert "Traceback" not in run.err
    assert [] == coordinator.opened


@pytest.mark.parametrize(
    "arguments", [("--bogus",), ("--rounds", "0"), ("--runner", "flink"), ("--now-ms", "x")]
)
def test_an_option_that_does_not_exist_or_is_out_of_range_is_a_usage_error(
    keeplast: Command, coordinator: FakeCoordinator, data_dir: Path, arguments: tuple[str, ...]
) -> None:
    assert 2 == keeplast("clean", data_dir, *arguments).code


def test_an_error_of_the_disk_is_failed_and_names_the_file(
    keeplast: Command, coordinator: FakeCoordinator, data_dir: Path
) -> None:
    coordinator.answer = Mock(
        side_effect=PermissionError(13, "Permission denied", "/data/t-0/x.log")
    )
    run = keeplast("clean", data_dir, *COMPACT, "--json", code=5)
    assert "/data/t-0/x.log" == run.document["error"]["path"]
    last = run.err.splitlines()[-1]
    assert last.startswith("error: permission denied; run as a user who has the right to it")
    assert f"path=/data/t-0/x.log user={user_name()}" in last


def test_a_defect_of_ours_is_failed_with_a_traceback_and_a_document(
    keeplast: Command, coordinator: FakeCoordinator, data_dir: Path
) -> None:
    coordinator.answer = Mock(side_effect=ZeroDivisionError("oops"))
    run = keeplast("clean", data_dir, *COMPACT, "--json", code=5)
    assert "ZeroDivisionError" == run.document["error"]["class"]
    assert "Traceback" in run.err


@pytest.mark.parametrize(("signal", "code"), [(KeyboardInterrupt, 130), (Terminated, 143)])
def test_a_signal_has_its_own_code_and_still_a_document(
    keeplast: Command,
    coordinator: FakeCoordinator,
    data_dir: Path,
    signal: type[BaseException],
    code: int,
) -> None:
    coordinator.answer = Mock(side_effect=signal)
    run = keeplast("clean", data_dir, *COMPACT, "--json", code=code)
    assert "Stopped" == run.document["error"]["class"]


def test_keys_without_effect_are_warned_about(
    keeplast: Command, coordinator: FakeCoordinator, data_dir: Path
) -> None:
    run = keeplast("clean", data_dir, *COMPACT, "--config", "segment.jitter.ms=5", "--json")
    assert "warning: setting has no effect here: " in run.err
    assert "key=segment.jitter.ms source=--config" in run.err
    assert 1 == len(run.document["partitions"])


def test_the_environment_counts(
    keeplast: Command,
    coordinator: FakeCoordinator,
    data_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KEEPLAST_LOG_CLEANER_DELETE_RETENTION_MS", "11")
    keeplast("clean", data_dir, *COMPACT)
    assert 11 == coordinator.requests[0].partitions[0].topic.delete_retention_ms
    assert "KEEPLAST_LOG_CLEANER_DELETE_RETENTION_MS" in os.environ


def test_words_from_a_report_cannot_command_the_terminal(
    keeplast: Command, coordinator: FakeCoordinator, data_dir: Path
) -> None:
    coordinator.answer = failed(CorruptError("bad \x1b[2J name"))
    run = keeplast("clean", data_dir, *COMPACT)
    assert "\x1b" not in run.out + run.err
    assert "\\x1b[2J" in run.err


@pytest.mark.parametrize("command", ["plan", "clean"])
def test_hazards_of_a_strategy_are_said_and_in_the_document(
    command: str, keeplast: Command, coordinator: FakeCoordinator, data_dir: Path
) -> None:
    run = keeplast(
        command, data_dir, *COMPACT, "--json", "--config", "compaction.strategy=timestamp"
    )
    (said,) = [each for each in run.document["warnings"] if "bring a deleted key back" in each]
    assert f"warning: {said}" in run.err


@pytest.mark.parametrize("command", ["plan", "clean"])
def test_the_defaults_that_are_assumed_are_said_once_and_in_the_document(
    command: str, keeplast: Command, coordinator: FakeCoordinator, data_dir: Path
) -> None:
    run = keeplast(command, data_dir, *COMPACT, "--json", "--despite", "dirty-ratio")
    assert [
        "compaction.strategy", "delete.retention.ms", "min.compaction.lag.ms",
        "producer.id.expiration.ms",
    ] == list(run.document["assumed"])  # fmt: skip
    assert 1 == run.err.count("note: Kafka's defaults are assumed")
    file = data_dir / "server.properties"
    file.write_text("log.cleaner.delete.retention.ms=5\nlog.cleaner.min.cleanable.ratio=1\n")
    run = keeplast(command, data_dir, *COMPACT, "--json", "--broker-config", file)
    assert ({}, 0) == (run.document["assumed"], run.err.count("assumed"))
    (partition,) = coordinator.requests[-1].partitions
    assert (5, 1.0) == (
        partition.topic.delete_retention_ms,
        partition.topic.min_cleanable_dirty_ratio,
    )


@pytest.mark.parametrize("command", ["clean", "plan"])
def test_a_brokers_default_policy_is_refused_for_the_only_topic_too(
    keeplast: Command, coordinator: FakeCoordinator, data_dir: Path, command: str
) -> None:
    file = data_dir / "server.properties"
    file.write_text("log.cleanup.policy=compact\n")
    run = keeplast(command, data_dir, "--broker-config", file, "--runner", "local", code=4)
    assert "name the topic with --topic t" in run.err
    assert not any(request.partitions for request in coordinator.requests)
    keeplast(command, data_dir, "--broker-config", file, "--topic", "t", code=0)
    assert ["t-0"] == [str(each.partition) for each in coordinator.requests[-1].partitions]


def test_a_line_of_a_brokers_file_that_cannot_be_used_costs_no_session(
    keeplast: Command, coordinator: FakeCoordinator, data_dir: Path
) -> None:
    (data_dir / "server.properties").write_text("node.id=1\nlog.roll.ms=soon\n")
    run = keeplast("clean", data_dir, *COMPACT, "--broker-config", data_dir / "server.properties")
    assert (2, []) == (run.code, coordinator.opened)
    assert "line=2" in run.err


@pytest.mark.parametrize("command", ["plan", "clean", "run"])
@pytest.mark.parametrize(
    ("option", "size", "least"),
    [
        ("--memory", "0", "32m"), ("--memory", "1", "32m"), ("--memory", "31m", "32m"),
        ("--task-memory", "0", "1m"), ("--task-memory", "1023k", "1m"),
    ],
)  # fmt: skip
def test_too_little_memory_is_refused_with_the_least_that_works(
    keeplast: Command, coordinator: FakeCoordinator, data_dir: Path,
    command: str, option: str, size: str, least: str,
) -> None:  # fmt: skip
    run = keeplast(command, data_dir, *COMPACT, option, size, code=2)
    assert f"too little to work with; give at least {least}. {option}={size!r}" in run.err
    assert [] == coordinator.requests


def test_a_dry_run_is_a_plan(
    keeplast: Command, coordinator: FakeCoordinator, data_dir: Path
) -> None:
    dry = keeplast("clean", data_dir, *COMPACT, "--dry-run")
    assert (0, False) == (dry.code, coordinator.exact)
    planned = keeplast("plan", data_dir, *COMPACT)
    assert planned.out == dry.out
    coordinator.exact = None
    keeplast("clean", data_dir, *COMPACT)
    assert coordinator.exact is None
