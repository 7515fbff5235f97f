"""Signals around the work of a command: they stop it, and behind its end they hide nothing."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import typer

from keeplast.cli.frame.command import (
    DONE,
    INTERRUPTED,
    TERMINATED,
    StopSignals,
    Terminated,
    run_guarded,
    terminate_on_signal,
)
from keeplast.cli.show.output import print_document
from tests.support.waiting import SECONDS_MAX

CODES = {signal.SIGINT: INTERRUPTED, signal.SIGTERM: TERMINATED}
ENDINGS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: Terminated}


@pytest.fixture(autouse=True)
def handlers() -> Iterator[dict[signal.Signals, Any]]:
    """The handlers of a process of ours; those of this one are put back."""
    before = {number: signal.getsignal(number) for number in CODES}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    terminate_on_signal()
    yield {number: signal.getsignal(number) for number in CODES}
    signal.set_wakeup_fd(-1)
    for number, handler in before.items():
        signal.signal(number, handler)


def no_stop() -> None:
    pytest.fail("asked to stop")


@pytest.mark.parametrize("number", CODES)
def test_a_signal_after_the_end_of_the_work_hides_no_result(
    number: signal.Signals, handlers: dict[signal.Signals, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    def body() -> tuple[int, dict[str, Any]]:
        with StopSignals(no_stop):
            pass
        signal.raise_signal(number)
        return DONE, {"partitions": ["cleaned"]}

    with pytest.raises(typer.Exit) as left:
        run_guarded(body, as_json=True)
    assert left.value.exit_code == DONE
    assert ["cleaned"] == json.loads(capsys.readouterr().out)["partitions"]
    assert handlers == {each: signal.getsignal(each) for each in CODES}


@pytest.mark.parametrize("number", CODES)
def test_a_signal_while_the_result_is_printed_cuts_nothing_off(
    number: signal.Signals, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def disturbed(document: dict[str, Any]) -> None:
        signal.raise_signal(number)
        print_document(document)

    def body() -> tuple[int, dict[str, Any]]:
        with StopSignals(no_stop):
            pass
        return DONE, {"partitions": []}

    monkeypatch.setattr("keeplast.cli.frame.command.print_document", disturbed)
    with pytest.raises(typer.Exit):
        run_guarded(body, as_json=True)
    assert {"version": 1, "partitions": []} == json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("number", CODES)
def test_a_second_late_signal_ends_what_does_not_end(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    def body() -> tuple[int, dict[str, Any]]:
        with StopSignals(no_stop):
            pass
        signal.raise_signal(number)
        with pytest.raises(ENDINGS[number]):
            signal.raise_signal(number)
        raise ENDINGS[number]

    with pytest.raises(typer.Exit) as left:
        run_guarded(body, as_json=True)
    assert CODES[number] == left.value.exit_code
    assert json.loads(capsys.readouterr().out)["error"]["class"] == "Stopped"


@pytest.mark.parametrize("number", CODES)
def test_a_signal_during_the_work_asks_for_its_end_once(number: signal.Signals) -> None:
    asked = []
    with StopSignals(lambda: asked.append(number)) as signals:
        signal.raise_signal(number)
        signal.raise_signal(number)
    assert (CODES[number], [number]) == (signals.exit_code, asked)


@pytest.mark.parametrize("number", CODES)
def test_work_that_fails_leaves_the_handlers_as_they_were(
    number: signal.Signals, handlers: dict[signal.Signals, Any]
) -> None:
    with pytest.raises(OSError, match="disk"), StopSignals(no_stop):
        raise OSError("disk")
    assert handlers[number] == signal.getsignal(number)


@pytest.mark.parametrize("is_over", [False, True], ids=["in the work", "behind it"])
@pytest.mark.parametrize("number", CODES)
def test_a_second_signal_ends_at_once_what_may_crash(
    number: signal.Signals, is_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    codes, ended = [], threading.Event()

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    monkeypatch.setattr("keeplast.cli.frame.command.os._exit", end)
    asked = []
    with StopSignals(lambda: asked.append(number), ends_at_second=True) as signals:
        signal.raise_signal(number)
        assert ([], [number]) == (codes, asked)
        if not is_over:
            signal.raise_signal(signal.SIGTERM)
            assert ended.wait(SECONDS_MAX)
    if is_over:
        signal.raise_signal(signal.SIGTERM)
        assert ended.wait(SECONDS_MAX)
    assert ([CODES[number]], [number], CODES[number]) == (codes, asked, signals.exit_code)


def test_signals_that_stop_nothing_end_nothing_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    codes: list[int] = []
    monkeypatch.setattr("keeplast.cli.frame.command.os._exit", codes.append)
    before = signal.getsignal(signal.SIGUSR1)
    # A command that has ended in this process may have left its own.
    others = set(threading.enumerate())
    signal.signal(signal.SIGUSR1, lambda *_: None)
    try:
        with StopSignals(lambda: None, ends_at_second=True):
            for _ in range(3):
                signal.raise_signal(signal.SIGUSR1)
            (thread,) = [
                each
                for each in set(threading.enumerate()) - others
                if each.name == "keeplast-signals"
            ]
        thread.join(SECONDS_MAX)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert ([], False, -1) == (codes, thread.is_alive(), signal.set_wakeup_fd(-1))
