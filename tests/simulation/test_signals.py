"""SIGINT and SIGTERM while ``clean`` works: it ends at the next safe point and says what it did."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path

import pytest

from keeplast.errors import StoppedError
from keeplast.run.commit import shielded
from tests.support.cleaning_process import Subject, disturb, partitions, sender, staged_names
from tests.support.mixed_log import write_mixed_log
from tests.support.observed_files import ObservedFiles, StoppingFiles
from tests.support.partition_maker import SMALL_SEGMENTS, clean_request, coordinator, last_round
from tests.support.replay import tree

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}


@pytest.fixture(scope="module")
def subject(tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """The log that is cleaned."""
    return Subject(tmp_path_factory.mktemp("signals"))


# An odd number of shares, so that every share has both signals.
@pytest.mark.rotates(5)
@pytest.mark.parametrize("number", CODES)
@pytest.mark.parametrize("seed", range(5))
def test_a_signal_ends_a_clean_at_a_safe_point(
    subject: Subject, number: signal.Signals, seed: int
) -> None:
    root = subject.copy(f"{number.name}-{seed}")
    (delay,) = subject.delays(seed, 1)
    ended = disturb(root, runner="local", delay_seconds=delay, act=sender(number))
    # No start-up has anything to finish: every partition is whole as it lies there.
    assert [] == [name for directory in partitions(root) for name in staged_names(directory)]
    subject.assert_readers_see_the_same(root)
    rounds = json.loads(ended.out)["partitions"]
    stopped = [each for each in rounds if each["error"] is not None]
    assert {"StoppedError"} >= {each["error"]["class"] for each in stopped}
    # Behind the end of the work a signal ends the process as it ends any.
    expected = {CODES[number]} if stopped else {0, CODES[number], -number}
    assert ended.code in expected, ended.err
    done = sum(each["end_offset"] is not None for each in rounds)
    assert len(partitions(root)) == done + len(stopped)
    subject.assert_recovers(root)


@pytest.mark.spark
@pytest.mark.repeats("tests/simulation/test_signals.py::test_a_signal_ends_a_clean_at_a_safe_point")
@pytest.mark.parametrize("number", CODES)
def test_a_signal_ends_a_spark_job(subject: Subject, number: signal.Signals) -> None:
    root = subject.copy(f"spark-{number.name}")
    ended = disturb(root, runner="spark", delay_seconds=0, act=sender(number))
    subject.assert_readers_see_the_same(root)
    errors = [each["error"] for each in json.loads(ended.out)["partitions"]]
    expected = {CODES[number]} if any(errors) else {0, CODES[number], -number}
    assert ended.code in expected, ended.err
    subject.assert_recovers(root)


def contents(directory: Path) -> dict[str, str]:
    return {name: content for name, (content, _) in tree(directory).items()}


def test_a_run_that_is_asked_to_stop_is_whole_or_as_before(tmp_path: Path) -> None:
    whole = write_mixed_log(tmp_path / "whole")
    counting = StoppingFiles(None)
    coordinator(files=counting).clean(clean_request(whole, topic=SMALL_SEGMENTS))
    outcomes = set()
    for stop_at in range(len(counting.operations)):
        directory = write_mixed_log(tmp_path / str(stop_at))
        before = contents(directory)
        files = StoppingFiles(stop_at)
        cleaning = coordinator(files=files)
        files.stop = cleaning.stop
        report = last_round(cleaning.clean(clean_request(directory, topic=SMALL_SEGMENTS)))
        assert isinstance(report.failure, StoppedError | None)
        assert (before if report.failure else contents(whole)) == contents(directory), stop_at
        outcomes.add(report.failure is None)
    assert {False, True} == outcomes


def test_a_run_that_was_stopped_begins_nothing(tmp_path: Path) -> None:
    directory = write_mixed_log(tmp_path)
    files = ObservedFiles()
    cleaning = coordinator(files=files)
    cleaning.stop()
    report = last_round(cleaning.clean(clean_request(directory)))
    assert isinstance(report.failure, StoppedError)
    assert [] == files.operations


def test_a_shield_delivers_a_signal_when_it_ends() -> None:
    reached = []
    handler = signal.getsignal(signal.SIGINT)

    def interrupted() -> None:
        with shielded():
            signal.raise_signal(signal.SIGINT)
            reached.append("the end of the block")

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert ["the end of the block"] == reached
    assert handler == signal.getsignal(signal.SIGINT)


def test_a_shield_in_another_thread_does_nothing() -> None:
    seen = []

    def work() -> None:
        with shielded():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert [signal.getsignal(signal.SIGINT)] == seen
