"""Questions to several logs at once: in this process, one after the other, or by tasks, one a log.

The rule that a reader must not break: the searched keys are sent to the tasks, and come back with
what was found. They stand in no name that a runner shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from keeplast.errors import CompactionError, StoppedError
from keeplast.model.partition import TopicPartition
from keeplast.rewrite.workspace import Workspace

Progressed = Callable[[int], None]
Item = TypeVar("Item")
Result = TypeVar("Result")
Found = TypeVar("Found")


class SearchRunner(Protocol):
    """Who searches several logs at once, on other hosts too: a runner of Spark."""

    def each(
        self,
        work: Callable[[Item, Progressed], Result],
        items: Sequence[Item],
        progressed: Progressed,
        roots: Iterable[Path] = (),
        names: Sequence[object] = (),
    ) -> Iterator[Result]:
        """Yield ``work`` of every item; every host must see ``roots``, ``names`` are shown."""


class AskableLog(Protocol):
    """A log that can be asked; where a task does, it is sent there."""

    @property
    def partition(self) -> TopicPartition:
        """Return which one it is."""


Log = TypeVar("Log", bound=AskableLog)
Ask = Callable[[Log, Workspace, Progressed, Progressed], Found]
"""Asks one log; hears of bytes that will be read, and of those that were."""


def ask_each(
    logs: Sequence[Log],
    ask: Ask[Log, Found],
    memory_bytes: int,
    planned: Progressed,
    progressed: Progressed,
    runner: SearchRunner | None = None,
    roots: Iterable[Path] = (),
) -> Iterator[tuple[TopicPartition, Found | Exception]]:
    """Yield what each log answers, or why it cannot, in the order of ``logs``.

    With ``runner`` its tasks ask, which see ``roots``, and report only what they have read.
    ``ask``, with all that it holds, is sent to them once, and to each its log. What ``planned`` and
    ``progressed`` raise ends it, a StoppedError at the least.
    """
    if runner is None:
        workspace = Workspace(memory_bytes)
        for each in logs:
            yield each.partition, attempt(partial(ask, each, workspace, planned, progressed))
        return
    work: Callable[[tuple[int, Log], Progressed], tuple[int, Found | Exception]]
    work = partial(_ask_alone, ask, memory_bytes)
    names = [each.partition for each in logs]
    found = dict(runner.each(work, list(enumerate(logs)), progressed, roots, names))
    for number, name in enumerate(names):
        yield name, found[number]


def _ask_alone(
    ask: Ask[Log, Found], memory_bytes: int, numbered: tuple[int, Log], progressed: Progressed
) -> tuple[int, Found | Exception]:
    """Ask one log in a task."""
    number, log = numbered
    workspace = Workspace(memory_bytes)
    return number, attempt(partial(ask, log, workspace, lambda _: None, progressed))


def attempt(work: Callable[[], Found]) -> Found | CompactionError | OSError:
    """Return what ``work`` does, or the fault that kept it from it; a stop is raised."""
    try:
        return work()
    except StoppedError:
        raise
    except (CompactionError, OSError) as error:
        return error
