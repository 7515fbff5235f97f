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

from msgspec import Struct

from keeplast.api.refusals import refused
from keeplast.clock import SystemClock
from keeplast.config.place_properties import PlaceKind
from keeplast.errors import CompactionError, InvalidError, RefusedError
from keeplast.model.hold import GroupReader, HoldBook, HoldPoint
from keeplast.model.partition import TopicPartition
from keeplast.run.events import Events, NoEvents
from keeplast.survey.receipt_book import UndoReceipt

if TYPE_CHECKING:
    from keeplast.api.round_terms import AskedRounds, WorkTerms
    from keeplast.attach.rounds.round import RoundCosts
    from keeplast.config.layers import PartitionChoice
    from keeplast.inspect.explain import AskedKey
    from keeplast.model.erasure_request import ErasureRequest, KeyHasher
    from keeplast.run.expiry import DeleteRecordsReport
    from keeplast.run.undo import UndoRound
    from keeplast.run.undoing import Finished, UndoReport
    from keeplast.service.attached_outlook import PartitionTombstones
    from keeplast.service.copying import CopyAnswer, CopyTerms, WrittenLogs
    from keeplast.service.erasure.certificate import SearchedPlace
    from keeplast.service.erasure.certificate_check import PartitionStanding
    from keeplast.service.erasure.directory_erasing import AskedErasure
    from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
    from keeplast.service.erasure.erasure_book import RequestShelf
    from keeplast.service.explained import KeyAnswer
    from keeplast.service.place_check import PlaceCheck
    from keeplast.service.place_loop import LoopTerms, OpenLoop, PlaceView, ViewTerms
    from keeplast.service.place_settings import ChangeTerms, ConfiguredPlace, PlaceSettings
    from keeplast.service.read_place import ReadPlace, ReadTerms
    from keeplast.service.search_tasks import SearchRunner
    from keeplast.service.status import PlaceStatus, StatusTerms
    from keeplast.service.upkeep import (
        DeletionTerms,
        Orphans,
        RepairTerms,
        UpkeepReport,
        UpkeepTerms,
    )
    from keeplast.service.verifying import VerifyAnswer, VerifyTerms
    from keeplast.survey.report import CleanReport


def named(topics: Collection[str]) -> tuple[str, ...]:
    """Return names of topics; InvalidError for a text, whose letters would be taken for names."""
    if isinstance(topics, str):
        raise InvalidError(f"give names of topics as a collection. topics={topics!r}", code="K109")
    return tuple(topics)


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchTerms:
    """The time of a search, its runner, and what hears how far it is.

    ``now_ms`` None is now, ``runner`` None this process. ``receipt`` is a file of receipts, None
    what the place keeps. ``brokers`` read what consumer groups have committed, None where files do.
    """

    now_ms: int | None = None
    runner: SearchRunner | None = None
    receipt: Path | None = None
    brokers: GroupReader | None = None
    planned: Callable[[int], None] = lambda count: None
    progressed: Callable[[int], None] = lambda count: None

    @property
    def at_ms(self) -> int:
        """Return the time of the search, in milliseconds since 1970."""
        return SystemClock().now_ms() if self.now_ms is None else self.now_ms


@contextlib.contextmanager
def _unheard() -> Iterator[Callable[[int], object]]:
    """Hear how much of the metadata topic was read, and show nothing."""
    yield lambda count: None


class PlaceEvents(Struct, frozen=True, kw_only=True):
    """Where a place reports while it works: warnings, and records of the metadata topic."""

    warned: Callable[[str], None] = lambda message: None
    folding: Callable[[], AbstractContextManager[Callable[[int], object]]] = _unheard


UNHEARD = PlaceEvents()


@dataclass(frozen=True, slots=True, kw_only=True)
class UndoTerms:
    """Which rounds are undone, by name, all of them the newest without; and where that is noted.

    ``writes`` False compares every byte and changes nothing. ``receipt`` takes a line of each;
    None is where the place keeps its receipts. ``finished`` hears of each partition when it is
    done. ``takes_over`` takes a partition from another process.
    """

    rounds: tuple[str, ...] = ()
    writes: bool = True
    takes_over: bool = False
    receipt: Path | None = None
    finished: Finished = lambda partition, done: None
    events: Events = field(default_factory=NoEvents)


@dataclass(frozen=True, slots=True)
class PlanReport:
    """What rounds would do; ``costs`` and ``tombstones`` are said of live topics alone.

    ``assumed`` says what brokers do not answer.
    """

    report: CleanReport
    costs: Sequence[tuple[TopicPartition, RoundCosts]] = ()
    tombstones: Sequence[PartitionTombstones] = ()
    assumed: str | None = None


@dataclass(frozen=True, slots=True)
class KeptRounds:
    """The rounds of a place that can be undone, the newest of each partition first.

    ``damaged`` are files of kept rounds that cannot be read; ``warnings`` say what is listed badly.
    """

    rounds: tuple[UndoRound, ...]
    damaged: tuple[Path, ...] = ()
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class UndoneRounds:
    """What an undo did; ``before_ms`` is when a round that is missing was undone, by its name."""

    report: UndoReport
    before_ms: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, report: UndoReport, entries: Callable[[], Iterable[object]]) -> UndoneRounds:
        """Return a report with the times that ``entries`` of receipts give, if they can be read."""
        before: dict[str, int] = {}
        if report.missing:
            with contextlib.suppress(CompactionError, OSError):
                before = {
                    each.attempt: each.now_ms for each in entries() if isinstance(each, UndoReceipt)
                }
        return cls(report, before)


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

    def refuse(self, given: Mapping[str, bool]) -> None:
        """Raise RefusedError for what was given and this kind of place has not."""
        for verb, is_given in given.items():
            if is_given:
                raise self.refused(verb)

    @property
    @abstractmethod
    def address(self) -> str:
        """Return the address as people type it, without a secret."""

    @property
    def head(self) -> dict[str, Any]:
        """Return how documents name the place."""
        return {"place": self.address, "kind": self.kind}

    @abstractmethod
    def status(self, scope: PartitionChoice, terms: StatusTerms) -> PlaceStatus:
        """Return how the chosen partitions stand; one that cannot be read is among them with its
        error. Takes no lock, claims nothing and writes nothing.
        """

    def refuse_status_terms(self, terms: StatusTerms) -> None:
        """Raise RefusedError for what only a status of a data directory is made with."""
        self.refuse(
            {
                "status --now-ms": terms.now_ms is not None,
                "status --tombstones": terms.tombstones is not None,
                "status --round-seconds": terms.round_seconds is not None,
            }
        )

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

    def expire(self, scope: PartitionChoice, terms: AskedRounds, work: WorkTerms) -> CleanReport:
        """Remove what retention and the log start let go, and clean nothing.

        Of ``terms`` only ``takes_over`` and a directory's facts count.
        """
        raise self.refused("clean --only-expire")

    def delete_records(
        self, partition: TopicPartition, before_offset: int, terms: DeletionTerms
    ) -> DeleteRecordsReport:
        """Delete a partition's records below an offset, as DeleteRecords does; -1 is all of them.

        Errors are those of :func:`keeplast.run.expiry.delete_records`.
        """
        raise self.refused("delete-records")

    def collect(
        self,
        scope: PartitionChoice,
        terms: UpkeepTerms,
        *,
        orphans: Orphans | None = None,
    ) -> UpkeepReport:
        """Remove replaced segments whose grace has passed.

        ``orphans`` is about the objects of a live cluster; a store refuses it.
        """
        raise self.refused("collect")

    def repair(self, scope: PartitionChoice, terms: RepairTerms) -> UpkeepReport:
        """End what was left undone; of a store, say what restored metadata lack."""
        raise self.refused("repair")

    def pause(self, scope: PartitionChoice, *, is_paused: bool = True) -> UpkeepReport:
        """Let no process decide or delete anything more in the partitions, or let all go on."""
        raise self.refused("pause")

    def detach(self, scope: PartitionChoice, terms: UpkeepTerms) -> UpkeepReport:
        """Give partitions up: a cluster's go on without keeplast, a store's are lost."""
        raise self.refused("detach")

    @abstractmethod
    def loop(
        self, scope: PartitionChoice, terms: LoopTerms, work: WorkTerms
    ) -> AbstractContextManager[OpenLoop]:
        """Open the place to be looked after, round after round; changes no log yet."""

    def refuse_host_terms(self, terms: LoopTerms) -> None:
        """Raise RefusedError for what makes a process a host of a store's partitions."""
        self.refuse({"run --host-dir": bool(terms.host_terms)})

    @abstractmethod
    def view(self, scope: PartitionChoice, terms: ViewTerms) -> PlaceView:
        """Return what a console shows of the place; takes no lock and claims nothing."""

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
                f"all of the place is checked; leave --topic out. place={self.address}", code="K101"
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
        self.refuse(
            {
                "verify AFTER": terms.after is not None,
                "verify --replicas": terms.replicas,
                "verify --receipt-head": terms.receipt_head is not None,
                "verify --now-ms": terms.now_ms is not None,
            }
        )

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
    def read_place(self, scope: PartitionChoice, terms: ReadTerms) -> ReadPlace:
        """Return it to read states from: what is in ``scope``, and a checkpoint's topic."""

    def refuse_more_directories(self, terms: ReadTerms) -> None:
        """Raise RefusedError for what only a place of directories is read by."""
        self.refuse(
            {
                "export PLACE PLACE": bool(terms.also),
                "export --despite partial-topics": terms.takes_partial,
            }
        )

    def export_logs(
        self,
        scope: PartitionChoice,
        to: Path,
        *,
        planned: Callable[[int], None] = lambda count: None,
        progressed: Callable[[int], None] = lambda count: None,
    ) -> WrittenLogs:
        """Write the chosen partitions below ``to`` as directories that a broker serves.

        A fault of one partition is in the answer and keeps no other from it.
        """
        raise self.refused("export --as log")

    def copy(self, source: AskedPlace, scope: PartitionChoice, terms: CopyTerms) -> CopyAnswer:
        """Copy partitions of a data directory into it; the directory is only read.

        A fault of one partition is in the answer and keeps no other from it.
        """
        raise self.refused("copy")
