"""A runner whose work and items are sent to another process and back, as Spark sends them."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


class Travelling:
    """Sends everything by bytes, and remembers how many items that were."""

    def __init__(self) -> None:
        self.items = 0

    def each(
        self,
        work: Callable[[Item, Callable[[int], None]], Result],
        items: Sequence[Item],
        progressed: Callable[[int], None],
        roots: Iterable[Path] = (),
        names: Sequence[object] = (),
    ) -> Iterator[Result]:
        """Yield the results in another order than that of the items."""
        for each in reversed(items):
            self.items += 1
            sent: Any = pickle.loads(pickle.dumps((work, each)))
            yield pickle.loads(pickle.dumps(sent[0](sent[1], progressed)))
