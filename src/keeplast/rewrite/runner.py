"""The port of whatever executes tasks: threads here, Spark in ``pipeline``.

A task is one wave, or a whole round in stages (:mod:`keeplast.rewrite.staged_round`).
A runner commits nothing and decides nothing. It may run a task on any host and more than once;
only the result that it yields counts, and it yields exactly one for every task, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from keeplast.rewrite.task import PartitionTask, TaskResult

Progressed = Callable[[int], None]


class Runner(Protocol):
    """Executes tasks. A context manager: leaving it stops what was started."""

    @property
    def slots(self) -> int:
        """Return how many tasks run at once; memory is shared out by it."""
        ...

    @property
    def shares_memory(self) -> bool:
        """Say whether all tasks share one memory, so that a key map is made once for all."""
        ...

    @property
    def is_cold(self) -> bool:
        """Say whether workers are processes that have done nothing yet: then stages cost more."""
        ...

    def run(self, tasks: Sequence[PartitionTask], progressed: Progressed) -> Iterator[TaskResult]:
        """Yield one result a task, as they end; ``progressed`` hears bytes read meanwhile."""
        ...

    def __enter__(self) -> Runner: ...

    def __exit__(self, *_: object) -> None: ...
