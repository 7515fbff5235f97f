"""Runs the body of a command and turns every way it can end into an exit code.

With ``--json`` a document is printed whatever happens: what the body returned, or one with an
``error`` and no partitions. Errors that we raise, and the disk's, are one line on stderr; only a
defect of ours leaves a traceback there. A signal that comes when the work is over does not keep its
result from being told.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import Any, NoReturn, Self

import typer

from keeplast.cli.frame import exit_codes
from keeplast.cli.show.fault import fault_text
from keeplast.cli.show.output import print_document, say, say_trace
from keeplast.cli.show.voice import voice
from keeplast.errors import CompactionError, CorruptError
from keeplast.model.redaction import without_secrets


class Terminated(BaseException):
    """SIGTERM arrived; unwinds as KeyboardInterrupt does, so that locks are released."""


def run_guarded(
    body: Callable[[], tuple[int, dict[str, Any] | None]], *, as_json: bool
) -> NoReturn:
    """Call ``body``; print its document when ``as_json``; leave with its exit code.

    ``body`` returns the code and the document (which it may leave out when nobody asked for it).
    """
    from keeplast import kernel_cache

    kernel_cache.announce(say, lambda message: say(message, kind="warning"))
    with _handlers_put_back():
        code = _run(body, as_json=as_json)
    raise typer.Exit(code)


def _run(body: Callable[[], tuple[int, dict[str, Any] | None]], *, as_json: bool) -> int:
    try:
        voice().open()
        code, document = body()
    except KeyboardInterrupt:
        code, document = exit_codes.INTERRUPTED, _describe_stop("SIGINT")
        say("stopped; nothing that was not finished is in place", kind="error")
    except Terminated:
        code, document = exit_codes.TERMINATED, _describe_stop("SIGTERM")
        say("terminated; nothing that was not finished is in place", kind="error")
    except BrokenPipeError:
        _silence_stdout()
        raise typer.Exit(exit_codes.FAILED) from None
    except (CompactionError, OSError) as error:
        code, document = exit_codes.error_exit_code(error), error_document(error)
        say(fault_text(error), kind="error")
        if voice().is_verbose:
            say_trace(without_secrets(traceback.format_exc()))
    except typer.Exit:
        raise
    except Exception as error:  # noqa: BLE001 - the loop that owns the command: code 5, not 1
        say_trace(without_secrets(traceback.format_exc()))
        code, document = exit_codes.FAILED, error_document(error)
    if as_json and document is not None:
        try:
            print_document(document)
        except BrokenPipeError:
            _silence_stdout()
    return code


@contextlib.contextmanager
def _handlers_put_back() -> Iterator[None]:
    """Give SIGINT and SIGTERM back the handlers that they had; only the main thread can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    found = {number: signal.getsignal(number) for number in _STOP_CODES}
    try:
        yield
    finally:
        for number, handler in found.items():
            # One that was not set from Python cannot be put back, and nobody has replaced it.
            if handler is not None:
                signal.signal(number, handler)


def error_document(error: Exception) -> dict[str, Any]:
    """Return the document of a command that failed before it had any partition."""
    path, position = None, None
    if isinstance(error, CorruptError):
        path, position = error.path, error.position
    elif isinstance(error, OSError) and error.filename is not None:
        path = os.fsdecode(error.filename)
    return {
        "partitions": [],
        "error": {
            "class": type(error).__name__,
            "message": fault_text(error),
            "path": None if path is None else without_secrets(path),
            "position": position,
        },
    }


def terminate_on_signal() -> None:
    """Make SIGTERM unwind the main thread."""
    signal.signal(signal.SIGTERM, _on_terminate)


class StopSignals:
    """While it lasts, SIGINT and SIGTERM ask for the end of the work instead of unwinding it.

    When the work has ended, one more signal does nothing: it is too late to stop anything, and the
    runner is closed and the result told. The next one unwinds even that. Ends with
    :func:`run_guarded`, which puts the handlers back.
    """

    def __init__(self, stop: Callable[[], None], *, ends_at_second: bool = False) -> None:
        """Call ``stop`` when one of them arrives.

        ``ends_at_second`` ends the process when another one does, as a crash would: for work that
        goes on from wherever a crash has left it. Also while a library keeps the main thread, in
        which handlers run.
        """
        self._stop = stop
        self._ends_at_second = ends_at_second
        self._wakeup: tuple[int, socket.socket] | None = None
        self._previous: dict[signal.Signals, Any] = {}
        self.exit_code: int | None = None

    def __enter__(self) -> Self:
        """Take over the handlers; only the main thread has them."""
        if threading.current_thread() is threading.main_thread():
            for number in _STOP_CODES:
                self._previous[number] = signal.signal(number, self._on_signal)
            if self._ends_at_second:
                self._watch()
        return self

    def _watch(self) -> None:
        """Count signals as they arrive, in a thread of its own."""
        arriving, told = socket.socketpair()
        told.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(told.fileno(), warn_on_full_buffer=False), told

        def watch() -> None:
            with arriving, told:
                found: list[signal.Signals] = []
                while len(found) < 2 and (data := arriving.recv(1)):
                    if data[0] in _STOP_CODES:
                        found.append(signal.Signals(data[0]))
            if len(found) > 1:
                say(f"{found[1].name} again: ended at once; the next run goes on from it")
                sys.stderr.flush()
                os._exit(_STOP_CODES[found[0]])

        threading.Thread(target=watch, name="keeplast-signals", daemon=True).start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Put the handlers back after an error, else after one more signal."""
        # What is closed behind the work may wait for others: a second signal ends that, too.
        if self._wakeup is not None and (kind is not None or self.exit_code is None):
            before, told = self._wakeup
            signal.set_wakeup_fd(before)
            told.close()
        if kind is not None:
            self._put_back()
        else:
            for number in self._previous:
                signal.signal(number, self._on_late_signal)

    def _put_back(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # A second one changes nothing here: what it cut short would be what makes the first safe.
        if self.exit_code is None:
            self.exit_code = _STOP_CODES[signal.Signals(number)]
            self._stop()
            say(f"{signal.Signals(number).name}: stopping at the next safe point")

    def _on_late_signal(self, number: int, frame: FrameType | None) -> None:
        self._put_back()


_STOP_CODES = {
    signal.SIGINT: exit_codes.INTERRUPTED,
    signal.SIGTERM: exit_codes.TERMINATED,
}


def _on_terminate(number: int, frame: FrameType | None) -> None:
    # Once is enough: a second one must not interrupt what releases the lock.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


def _describe_stop(name: str) -> dict[str, Any]:
    return {
        "partitions": [],
        "error": {
            "class": "Stopped",
            "message": f"stopped by {name}",
            "path": None,
            "position": None,
        },
    }


def _silence_stdout() -> None:
    """Point stdout at nothing, so that the interpreter does not fail while it flushes."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
