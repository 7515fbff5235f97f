"""Makes a command of a function that takes its options as values, and an exit code of its end.

A frozen ``Struct`` whose fields are ``Annotated`` with Typer's parameters is a group of options. A
command names the groups it takes; Typer is shown their fields one by one, in the order in which
they stand. So an option is declared once, and what a command was given is passed on as a value. In
a group a repeatable option is a tuple, empty when it was not given; Typer's list stays here.

The exit codes, by what the caller should do.

::

    0      done; skipped partitions included
    1      a check failed
    2      usage: fix an argument or a setting
    3      corrupt input; other partitions went on
    4      refused: understood, and not safe to do
    5      failed: disk, runner, or a defect of keeplast
    130    stopped by SIGINT
    143    stopped by SIGTERM

Of several partitions the greatest code counts, and of a report the worst of its rounds. A round
that crossed a process boundary may carry its error's name only; the name decides then.

With ``--json`` a document is printed whatever happens: what the body returned, or one with an
``error`` and no partitions. Errors that we raise, and the disk's, are one line on stderr; only a
defect of ours leaves a traceback there. A signal that comes when the work is over does not keep its
result from being shown.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from itertools import chain
from types import FrameType, TracebackType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    NoReturn,
    Self,
    get_args,
    get_origin,
    get_type_hints,
)

import typer
from msgspec import Struct, StructMeta
from typer.models import OptionInfo, ParameterInfo

from keeplast.cli.frame.lazy import SHOWN_MAX
from keeplast.cli.show.output import fault_text, print_document, print_result, say, say_trace, voice
from keeplast.errors import (
    CompactionError,
    CorruptError,
    InvalidError,
    RefusedError,
    StoppedError,
    code_of,
    installing,
)
from keeplast.model.text import printable, without_secrets

if TYPE_CHECKING:
    from keeplast.api.place import AskedPlace
    from keeplast.service.upkeep import UpkeepReport
    from keeplast.survey.report import CleanReport, ExpiryReport, RoundReport

DONE = 0
CHECK_FAILED = 1
USAGE = 2
CORRUPT = 3
REFUSED = 4
FAILED = 5
INTERRUPTED = 130
TERMINATED = 143


def error_exit_code(error: BaseException) -> int:
    """Return the code for an exception that ended a command."""
    if isinstance(error, InvalidError):
        return USAGE
    if isinstance(error, CorruptError):
        return CORRUPT
    if isinstance(error, RefusedError):
        return REFUSED
    return FAILED


NEEDED = {
    "tier": ("the tier needs", ("sqlalchemy", "alembic", "obstore")),
    "cluster": ("certificates need", ("cryptography",)),
    "console": ("the console needs", ("starlette", "uvicorn", "jinja2", "anyio")),
}
"""Of an extra, what asks for it, and packages that it brings."""


def check_packages(extra: str) -> None:
    """Raise InvalidError when the packages of ``extra`` are not installed."""
    who, names = NEEDED[extra]
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise InvalidError(
            f"{who} more packages; {installing(extra)}. missing={', '.join(missing)}", code="K134"
        )


class Terminated(BaseException):
    """SIGTERM arrived; unwinds as KeyboardInterrupt does, so that locks are released."""


def run_guarded(
    body: Callable[[], tuple[int, dict[str, Any] | None]], *, as_json: bool
) -> NoReturn:
    """Call ``body``; print its document when ``as_json``; leave with its exit code.

    ``body`` returns the code and the document, which may be None where it was not asked for.
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
        code, document = INTERRUPTED, _describe_stop("SIGINT")
        say("stopped; nothing that was not finished is in place [K237]", kind="error")
    except Terminated:
        code, document = TERMINATED, _describe_stop("SIGTERM")
        say("terminated; nothing that was not finished is in place [K237]", kind="error")
    except BrokenPipeError:
        _silence_stdout()
        raise typer.Exit(FAILED) from None
    except (CompactionError, OSError) as error:
        code, document = error_exit_code(error), error_document(error)
        say(fault_text(error), kind="error")
        if voice().is_verbose:
            say_trace(without_secrets(traceback.format_exc()))
    except typer.Exit:
        raise
    except Exception as error:  # noqa: BLE001 - the loop that owns the command: code 5, not 1
        say_trace(without_secrets(traceback.format_exc()))
        code, document = FAILED, error_document(error)
    try:
        if as_json and document is not None:
            print_document(document)
        sys.stdout.flush()
    except OSError as error:
        _silence_stdout()
        if not isinstance(error, BrokenPipeError):
            code = FAILED
            say(fault_text(error), kind="error")
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
            # One that was not set from Python cannot be put back, and was not replaced.
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
            "code": code_of(error),
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
    runner is closed and the result shown. The next one unwinds even that. Ends with
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
        arriving, wakeup = socket.socketpair()
        wakeup.setblocking(False)
        self._wakeup = signal.set_wakeup_fd(wakeup.fileno(), warn_on_full_buffer=False), wakeup

        def watch() -> None:
            with arriving, wakeup:
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
        # What is closed after the work may wait for others: a second signal ends that, too.
        if self._wakeup is not None and (kind is not None or self.exit_code is None):
            before, wakeup = self._wakeup
            signal.set_wakeup_fd(before)
            wakeup.close()
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
    signal.SIGINT: INTERRUPTED,
    signal.SIGTERM: TERMINATED,
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
            "message": f"stopped by {name} [K237]",
            "code": "K237",
            "path": None,
            "position": None,
        },
    }


def _silence_stdout() -> None:
    """Point stdout at nothing, so that the interpreter does not fail while it flushes."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


Result = tuple[int, Any]
"""The exit code of a command, and what its document is made of."""

FIRST_MAX = SHOWN_MAX - 1


class _Parameter(Struct, frozen=True):
    """One parameter as Typer sees it; ``default`` is ``inspect.Parameter.empty`` for a must."""

    name: str
    kind: Any
    info: ParameterInfo
    default: Any
    is_repeatable: bool

    def for_typer(self, *, is_first: bool) -> inspect.Parameter:
        """Return the parameter of the signature; one of the first has no panel of its own."""
        info = self.info
        if is_first:
            info = copy(info)
            info.rich_help_panel = None
        kind, default = self.kind, self.default
        if self.is_repeatable:
            kind = list[get_args(kind)[0]]  # type: ignore[misc]
            if default is not inspect.Parameter.empty:
                kind, default = kind | None, None
        return inspect.Parameter(
            self.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[kind, info],
        )


def command(
    *, first: tuple[str, ...], example: str
) -> Callable[[Callable[..., Result]], Callable[..., None]]:
    """Return what makes a command of a function that returns exit code and document.

    The function takes groups of options and single ``Annotated`` parameters, ``as_json`` among
    them. ``first`` are the parameters that are used most: ``--help`` shows them before all others,
    and leaves out the last ones of more than twelve. ``example`` is one call that makes sense,
    shown below the description.
    """

    def make(function: Callable[..., Result]) -> Callable[..., None]:
        parameters = list(_flat(function))
        found = {each.name: each for each in parameters}
        if len(found) < len(parameters):
            raise TypeError(f"an option is declared twice. command={function.__name__}")
        if set(first) - found.keys() or len(first) > FIRST_MAX:
            raise TypeError(f"not options of it, or too many. command={function.__name__} {first=}")
        ordered = [
            *(each for each in found.values() if not isinstance(each.info, OptionInfo)),
            *(found[name] for name in first),
            *(
                each
                for each in found.values()
                if isinstance(each.info, OptionInfo) and each.name not in first
            ),
        ]
        signature = inspect.Signature(
            [each.for_typer(is_first=each.name in first) for each in ordered]
        )

        def call(**given: Any) -> None:
            def body() -> Result:
                return function(**_arguments(function, given))

            run_guarded(body, as_json=given["as_json"])

        call.__name__ = call.__qualname__ = function.__name__
        call.__module__ = function.__module__
        call.__doc__ = f"{inspect.cleandoc(function.__doc__ or '')}\n\nExample: `{example}`"
        call.__signature__ = signature  # type: ignore[attr-defined]
        call.__annotations__ = {name: p.annotation for name, p in signature.parameters.items()}
        return call

    return make


def _hints_of(holder: Any) -> dict[str, Any]:
    """Return what stands for options in a function or a group: groups, and ``Annotated`` ones.

    A group may have fields that are no options; they keep their defaults.
    """
    hints = get_type_hints(holder, include_extras=True)
    names = inspect.signature(holder).parameters
    return {
        name: hints[name]
        for name in names
        if isinstance(hints[name], StructMeta) or get_origin(hints[name]) is Annotated
    }


def _flat(holder: Any) -> Iterator[_Parameter]:
    """Yield the parameters of a function or a group, those of its groups in their places."""
    signature = inspect.signature(holder)
    for name, hint in _hints_of(holder).items():
        if isinstance(hint, StructMeta):
            yield from _flat(hint)
        else:
            kind, *metadata = get_args(hint)
            info = next(each for each in metadata if isinstance(each, ParameterInfo))
            default = signature.parameters[name].default
            yield _Parameter(name, kind, info, default, get_origin(kind) is tuple)


def _arguments(holder: Any, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what to call a function or a group with, made of what Typer gave by name."""
    found: dict[str, Any] = {}
    for name, hint in _hints_of(holder).items():
        if isinstance(hint, StructMeta):
            group: Any = hint
            found[name] = group(**_arguments(group, given))
        elif get_origin(get_args(hint)[0]) is tuple:
            found[name] = tuple(chain.from_iterable(map(_several, given[name] or ())))
        else:
            found[name] = given[name]
    return found


def _several(value: Any) -> tuple[Any, ...]:
    """Return what one use of a repeatable option names: a parser may make several values of it."""
    return value if isinstance(value, tuple) else (value,)


_BY_NAME = {
    InvalidError.__name__: USAGE,
    CorruptError.__name__: CORRUPT,
    RefusedError.__name__: REFUSED,
}


def round_exit_code(report: RoundReport | ExpiryReport) -> int:
    """Return the code for one round, or for what expired after it; a skipped one is done."""
    if report.failure is not None:
        return error_exit_code(report.failure)
    if report.error is not None:
        return _BY_NAME.get(report.error.error_class, FAILED)
    return DONE


def report_exit_code(report: CleanReport) -> int:
    """Return the code for a whole call."""
    return max((round_exit_code(each) for _, each in _outcomes(report)), default=DONE)


def is_stopped(report: CleanReport) -> bool:
    """Say whether something was left undone because a signal asked for that."""
    return any(isinstance(each.failure, StoppedError) for _, each in _outcomes(report))


def report_errors(report: CleanReport) -> list[str]:
    """Return a line for each failed round or expiry, the partition first."""
    return [
        f"{name}: {fault_text(each.failure) if each.failure else each.error.message}"
        for name, each in _outcomes(report)
        if each.error is not None
    ]


def say_faults(faults: Sequence[tuple[object, Exception]]) -> int:
    """Print an error for each partition that has one, and return the exit code of all."""
    say(*(f"{partition}: {fault_text(error)}" for partition, error in faults), kind="error")
    return max((error_exit_code(error) for _, error in faults), default=DONE)


def end_of_upkeep(
    place: AskedPlace,
    report: UpkeepReport,
    lines: Callable[[UpkeepReport], Iterable[str]],
    *,
    as_json: bool,
) -> tuple[int, dict[str, Any]]:
    """Show what upkeep did, and return the exit code and the document."""
    code, rows = REFUSED if report.waits else DONE, []
    for each in report.outcomes:
        row = {"topic": each.partition.topic, "partition": each.partition.partition, **each.facts}
        if each.failure is not None:
            code = max(code, error_exit_code(each.failure))
            row["error"] = error_document(each.failure)["error"]
            say(f"{printable(str(each.partition))}: {fault_text(each.failure)}", kind="error")
        rows.append(row)
    if not as_json:
        print_result(*lines(report))
    return code, {**place.head, **report.facts, "partitions": rows}


def _outcomes(report: CleanReport) -> Iterator[tuple[str, RoundReport | ExpiryReport]]:
    """Yield everything that may have failed, with the partition's name."""
    for partition in report.partitions:
        name = f"{partition.topic}-{partition.partition}"
        for each in partition.rounds:
            yield name, each
        if partition.expiry is not None:
            yield name, partition.expiry
