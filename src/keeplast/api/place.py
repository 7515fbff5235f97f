"""What a place of logs can be asked, wherever it lies: a directory, a store, or attached topics.

Functions of :mod:`keeplast` take a place and ask it by these methods; each is a call of what the
commands call. Nothing is open between two calls, and every call sees the place as it is then.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from keeplast.api.refusals import refused
from keeplast.api.round_terms import AskedRounds, PlanReport, WorkTerms
from keeplast.clock import SystemClock
from keeplast.config.choice import PartitionChoice
from keeplast.config.place_properties import PlaceKind
from keeplast.errors import InvalidError, RefusedError
from keeplast.inspect.explain import AskedKey
from keeplast.model.erasure_request import ErasureRequest
from keeplast.model.hold import HoldBook, HoldPoint
from keeplast.model.keyed_hash import KeyHasher
from keeplast.model.reader_wait import GroupReader
from keeplast.run.events import Events, NoEvents
from keeplast.run.undo import UndoRound
from keeplast.run.undoing import Told, UndoReport
from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
from keeplast.service.erasure.erasure_book import RequestShelf
from keeplast.service.erasure.erasure_call import AskedErasure
from keeplast.service.explained import KeyAnswer
from keeplast.service.place_check import PlaceCheck
from keeplast.service.place_settings import ChangeTerms, ConfiguredPlace, PlaceSettings
from keeplast.service.read_place import ReadPlace
from keeplast.service.search_tasks import SearchRunner
from keeplast.service.verifying import VerifyAnswer, VerifyTerms
from keeplast.survey.receipt_book import UndoReceipt
from keeplast.survey.report import CleanReport

if TYPE_CHECKING:
    from keeplast.service.erasure.certificate_check import PartitionStanding
    from keeplast.service.erasure.certificate_issue import SearchedPlace


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
    planned: Callable[[int], None] = lambda count: None
    progressed: Callable[[int], None] = lambda count: None

    @property
    def at_ms(self) -> int:
        """Return the time as of which is searched, in milliseconds since 1970."""
        return SystemClock().now_ms() if self.now_ms is None else self.now_ms


@contextlib.contextmanager
def _unheard() -> Iterator[Callable[[int], object]]:
    """Hear how much of the metadata topic was read, and show nothing."""
    yield lambda count: None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceEvents:
    """Where a place reports while it works: warnings, and records of the metadata topic."""

    warned: Callable[[str], None] = lambda message: None
    folding: Callable[[], AbstractContextManager[Callable[[int], object]]] = _unheard


UNHEARD = PlaceEvents()


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoTerms:
    """Which rounds are undone, by name, all of them the newest without; and where that is noted.

    ``writes`` False compares every byte and changes nothing. ``receipt`` takes a line of each;
    None is where the place keeps its receipts. ``told`` hears of each partition when it is done.
    ``takes_over`` takes a partition from another process.
    """

    rounds: tuple[str, ...] = ()
    writes: bool = True
    takes_over: bool = False
    receipt: Path | None = None
    told: Told = lambda partition, done: None
    events: Events = field(default_factory=NoEvents)


@dataclass(frozen=True, slots=True)
class KeptRounds:
    """The rounds of a place that can be undone, the newest of each partition first.

    ``damaged`` are files of kept rounds that cannot be read; ``warnings`` say what is listed badly.
    """

    rounds: tuple[UndoRound, ...]
    damaged: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = ()


def undone_ms(entries: Iterable[object]) -> dict[str, int]:
    """Return when rounds were undone, by name, as entries of receipts say; ms since 1970."""
    return {each.attempt: each.now_ms for each in entries if isinstance(each, UndoReceipt)}


@dataclass(frozen=True, slots=True)
class UndoneRounds:
    """What an undo did; ``before_ms`` is when a round that is missing was undone, by its name."""

    report: UndoReport
    before_ms: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Shelves:
    """Where requests of a place are kept, and its own list, which undo heeds; often the same."""

    shelf: RequestShelf
    own: RequestShelf


class AskedPlace(ABC):
    """A place of logs; what is asked of it is in the functions of :mod:`keeplast`."""

    kind: ClassVar[PlaceKind]

    def refused(self, verb: str) -> RefusedError:
        """Return the refusal of a verb that this kind of place has not."""
        return refused(verb, self.kind, self.address)

    @property
    @abstractmethod
    def address(self) -> str:
        """Return the address as people type it, without a secret."""

    @property
    def head(self) -> dict[str, Any]:
        """Return how documents name the place."""
        return {"place": self.address, "kind": self.kind}

    @abstractmethod
    def add_hold(
        self,
        name: str,
        topics: Sequence[str],
        numbers: Sequence[int],
        point: HoldPoint,
        age_ms: int,
    ) -> HoldBook:
        """Hold partitions at a point, all or none, and return the new holds."""

    @abstractmethod
    def holds(self) -> HoldBook:
        """Return every hold, also those that are over, until the next is added."""

    @abstractmethod
    def release_hold(self, name: str) -> HoldBook:
        """End a hold and return it."""

    @abstractmethod
    def plan(
        self, scope: PartitionChoice, terms: AskedRounds, work: WorkTerms, *, exact: bool = False
    ) -> PlanReport:
        """Return what :meth:`clean` would do; ``exact`` reads everything and counts."""

    @abstractmethod
    def clean(self, scope: PartitionChoice, terms: AskedRounds, work: WorkTerms) -> CleanReport:
        """Do rounds of the chosen partitions; a fault of one is in its report and stops no other.

        Work that ``work.switch`` ended early has a StoppedError in its report.
        """

    @abstractmethod
    def check(self, topics: Sequence[str] = ()) -> PlaceCheck:
        """Return how the place stands: reach, rights, release, clock and settings.

        Changes nothing; what cannot be looked at is a row. ``topics`` are those of a live cluster
        that are looked at, every tiered one without; InvalidError for those of another place.
        """

    def require_no_topics(self, topics: Sequence[str]) -> None:
        """Raise InvalidError for topics of a place that is checked as a whole."""
        if topics:
            raise InvalidError(
                f"all of the place is checked; leave --topic out. place={self.address}"
            )

    @abstractmethod
    def effective_settings(self, topic: str | None = None) -> PlaceSettings:
        """Return the settings that count for ``topic``, or for the cluster, with their sources."""

    def configure(
        self,
        changes: Mapping[str, str | None],
        scope: PartitionChoice,
        terms: ChangeTerms,
        work: WorkTerms,
    ) -> ConfiguredPlace:
        """Change settings, None takes one out; nothing is changed where the result is no use."""
        raise self.refused("configure")

    def kept_rounds(self, scope: PartitionChoice) -> KeptRounds:
        """Return the rounds that have kept their replaced segments; reads no segment."""
        raise self.refused("undo")

    def undo(self, scope: PartitionChoice, terms: UndoTerms) -> UndoneRounds:
        """Put back the replaced segments of the newest round of each partition, or of named rounds.

        What a partition refuses is in the report, and keeps no other from it.
        """
        raise self.refused("undo")

    def drop_kept(self, scope: PartitionChoice, *, takes_over: bool = False) -> Mapping[str, int]:
        """Let the kept rounds of each partition go before their time, and return how many."""
        raise self.refused("undo")

    @abstractmethod
    def verify(self, scope: PartitionChoice, terms: VerifyTerms) -> VerifyAnswer:
        """Judge what cleaning did by a method of its own; a fault of one partition is in the answer
        and keeps no other from it. Changes nothing but, for ``terms.notes``, the receipt.
        """

    def refuse_directory_terms(self, terms: VerifyTerms) -> None:
        """Raise RefusedError for what only logs of a directory are judged by."""
        for verb, given in (
            ("verify AFTER", terms.after is not None),
            ("verify --replicas", terms.replicas),
            ("verify --receipt-head", terms.receipt_head is not None),
            ("verify --now-ms", terms.now_ms is not None),
        ):
            if given:
                raise self.refused(verb)

    @abstractmethod
    def explain(self, asked: AskedKey, scope: PartitionChoice, terms: SearchTerms) -> KeyAnswer:
        """Explain a key in the chosen partitions."""

    @abstractmethod
    def shelves(self, requests: Path | None) -> AbstractContextManager[Shelves]:
        """Open where requests are kept, in the file ``requests`` if one is named."""

    @abstractmethod
    def find_traces(self, asked: AskedErasure, terms: SearchTerms) -> ErasureAnswer:
        """Search for keys that must go; changes nothing."""

    def require_whole(self) -> None:  # noqa: B027 (most places have no part of a directory)
        """Raise InvalidError for one partition of a directory, next to which traces may lie."""

    def require_elsewhere(self, path: Path) -> None:  # noqa: B027 (most places are no directory)
        """Raise InvalidError for a file that would lie among the place's own."""

    @abstractmethod
    def clean_traces(
        self, asked: AskedErasure, answer: ErasureAnswer, terms: AskedRounds, work: WorkTerms
    ) -> CleanReport:
        """Do what rounds may do where a trace was found; nothing is kept for undo."""

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
