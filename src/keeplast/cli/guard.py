"""Runs the body of a command and turns every way it can end into an exit code.

With ``--json`` a document is printed whatever happens: what the body returned, or one with an
``error`` and no partitions. Errors that we raise, and the disk's, are one line on stderr; only a
defect of ours leaves a traceback there.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

import typer

from keeplast.cli import exit_codes
from keeplast.cli.output import print_document, say
from keeplast.errors import CompactionError, CorruptError

JSON_VERSION = 1


class Terminated(BaseException):
    """SIGTERM arrived; unwinds as KeyboardInterrupt does, so that locks are released."""


def run_guarded(
    body: Callable[[], tuple[int, dict[str, Any] | None]], *, as_json: bool
) -> NoReturn:
    """Call ``body``; print its document when ``as_json``; leave with its exit code.

    ``body`` returns the code and the document (which it may leave out when nobody asked for it).
    """
    try:
        code, document = body()
    except KeyboardInterrupt:
        code, document = exit_codes.INTERRUPTED, _stopped("SIGINT")
        say("stopped; nothing that was not finished is in place", kind="error")
    except Terminated:
        code, document = exit_codes.TERMINATED, _stopped("SIGTERM")
        say("terminated; nothing that was not finished is in place", kind="error")
    except BrokenPipeError:
        _silence_stdout()
        raise typer.Exit(exit_codes.FAILED) from None
    except (CompactionError, OSError) as error:
        code, document = exit_codes.error_exit_code(error), error_document(error)
        say(error_text(error), kind="error")
    except typer.Exit:
        raise
    except Exception as error:  # noqa: BLE001 - the loop that owns the command: code 5, not 1
        traceback.print_exc(file=sys.stderr)
        code, document = exit_codes.FAILED, error_document(error)
    if as_json and document is not None:
        try:
            print_document(document)
        except BrokenPipeError:
            _silence_stdout()
    raise typer.Exit(code)


def error_document(error: Exception) -> dict[str, Any]:
    """Return the document of a command that failed before it had any partition."""
    path, position = None, None
    if isinstance(error, CorruptError):
        path, position = error.path, error.position
    elif isinstance(error, OSError) and error.filename is not None:
        path = os.fsdecode(error.filename)
    return {
        "version": JSON_VERSION,
        "partitions": [],
        "error": {
            "class": type(error).__name__,
            "message": error_text(error),
            "path": path,
            "position": position,
        },
    }


def error_text(error: Exception) -> str:
    """Return the sentence for ``error``; the disk's errors are given the form of ours."""
    if isinstance(error, OSError) and error.strerror:
        path = f" path={os.fsdecode(error.filename)}" if error.filename is not None else ""
        return f"{error.strerror.lower()}.{path}" if path else error.strerror.lower()
    return str(error) or type(error).__name__


def terminate_on_signal() -> None:
    """Make SIGTERM unwind the main thread."""
    signal.signal(signal.SIGTERM, _on_terminate)


def _on_terminate(number: int, frame: FrameType | None) -> None:
    # Once is enough: a second one must not interrupt what releases the lock.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Terminated


def _stopped(name: str) -> dict[str, Any]:
    return {
        "version": JSON_VERSION,
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
