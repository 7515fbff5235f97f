"""What a place of logs can be asked, wherever it lies: a directory, a store, or attached topics.

Functions of :mod:`keeplast` take a place and ask it by these methods; each is a call of what the
commands call. Nothing is open between two calls, and every call sees the place as it is then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keeplast.clock import SystemClock
from keeplast.config.choice import PartitionChoice
from keeplast.errors import InvalidError
from keeplast.inspect.explain import AskedKey
from keeplast.model.erasure_request import ErasureRequest
from keeplast.model.hold import Hold, HoldPoint
from keeplast.model.keyed_hash import KeyHasher
from keeplast.model.partition import TopicPartition
from keeplast.model.reader_wait import GroupReader
from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
from keeplast.service.erasure.erasure_book import RequestShelf
from keeplast.service.erasure.erasure_call import AskedErasure
from keeplast.service.explained import KeyAnswer
from keeplast.service.read_place import ReadPlace
from keeplast.service.search_tasks import SearchRunner

if TYPE_CHECKING:
    from keeplast.service.erasure.certificate_check import PartitionStanding
    from keeplast.service.erasure.certificate_issue import SearchedPlace

Failed = tuple[tuple[TopicPartition, Exception], ...]
"""What failed of each partition."""


def _silent(count: int) -> None:
    """Hear of progress and say nothing."""


def named(topics: Collection[str]) -> tuple[str, ...]:
    """Return names of topics; InvalidError for a text, whose letters would be taken for names."""
    if isinstance(topics, str):
        raise InvalidError(f"give names of topics as a collection. topics={topics!r}")
    return tuple(topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTerms:
    """As of when a place is searched, by whom, and who is told how far it is.

    ``now_ms`` None is now, ``runner`` None this process. ``receipt`` is a file of receipts, None
    what the place keeps. ``brokers`` tell what consumer groups have committed, None where files do.
    """

    now_ms: int | None = None
    runner: SearchRunner | None = None
    receipt: Path | None = None
    brokers: GroupReader | None = None
    planned: Callable[[int], None] = _silent
    progressed: Callable[[int], None] = _silent

    @property
    def at_ms(self) -> int:
        """Return the time as of which is searched, in milliseconds since 1970."""
        return SystemClock().now_ms() if self.now_ms is None else self.now_ms


@dataclass(frozen=True, slots=True)
class Shelves:
    """Where requests of a place are kept, and its own list, which undo heeds; often the same."""

    shelf: RequestShelf
    own: RequestShelf


class AskedPlace(ABC):
    """A place of logs; what is asked of it is in the functions of :mod:`keeplast`."""

    @abstractmethod
    def add_hold(
        self,
        name: str,
        topics: Sequence[str],
        numbers: Sequence[int],
        point: HoldPoint,
        age_ms: int,
    ) -> tuple[Hold, ...]:
        """Hold partitions at a point; all or none."""

    @abstractmethod
    def holds(self) -> tuple[Hold, ...]:
        """Return every hold."""

    @abstractmethod
    def release_hold(self, name: str) -> tuple[Hold, ...]:
        """End a hold, and return what it was."""

    @abstractmethod
    def explain(self, asked: AskedKey, scope: PartitionChoice, terms: SearchTerms) -> KeyAnswer:
        """Explain a key in the chosen partitions."""

    @abstractmethod
    def shelves(self, requests: Path | None) -> AbstractContextManager[Shelves]:
        """Open where requests are kept, in the file ``requests`` if one is named."""

    @abstractmethod
    def find_traces(self, asked: AskedErasure, terms: SearchTerms) -> ErasureAnswer:
        """Search for keys that must go; changes nothing."""

    def require_elsewhere(self, path: Path) -> None:  # noqa: B027 (most places are no directory)
        """Raise InvalidError for a file that would lie among the place's own."""

    def require_rounds(self) -> None:  # noqa: B027 (most places do rounds)
        """Raise RefusedError where no round is done from here."""

    @abstractmethod
    def clean_traces(
        self, asked: AskedErasure, answer: ErasureAnswer, terms: SearchTerms
    ) -> Failed:
        """Do what rounds may do where a trace was found, and say what failed."""

    @abstractmethod
    def search_all(
        self, request: ErasureRequest, keys: ErasureKeys, terms: SearchTerms
    ) -> SearchedPlace:
        """Search for what a certificate rests on."""

    @abstractmethod
    def compare(
        self, statement: Mapping[str, Any], hasher: KeyHasher | None, terms: SearchTerms
    ) -> Sequence[PartitionStanding]:
        """Say how what is here now stands to what a certificate says."""

    @abstractmethod
    def read_place(self, scope: PartitionChoice, checkpoint: str | None) -> ReadPlace:
        """Return it to read states from: what is in ``scope``, and a checkpoint's topic."""
