"""Notes on a round other than its limits: kinds with their numbers, no words.

Answers to :mod:`keeplast.cleaner.reasons`; the sentences are those of
:mod:`keeplast.survey.wording`.
"""

from __future__ import annotations

from enum import StrEnum, auto
from pathlib import Path

from msgspec import Struct

from keeplast.cleaner.cleanable_range import IdleRoll
from keeplast.cleaner.reasons import Limit, SectionNote
from keeplast.cleaner.segment_expiry import StaysNote
from keeplast.model.hold import ReaderWait
from keeplast.model.partition import TopicPartition


class RollStage(StrEnum):
    """When the active segment is left: before this round, by it, or at its target alone."""

    DONE = auto()
    FORESEEN = auto()
    AT_TARGET = auto()


class RollNote(Struct, frozen=True):
    """The active segment is left because it is ``idle``, or because the caller asks: None."""

    stage: RollStage
    idle: IdleRoll | None = None


class RemainsActive(Struct, frozen=True):
    """The active segment from ``base_offset`` on is old enough and stays active at the target.

    ``limit`` keeps the round from it; None says that no round is worth it.
    """

    base_offset: int
    limit: Limit | None = None


class TornTail(Struct, frozen=True):
    """The active segment is torn at byte ``position``; the log is taken to end at ``log_end``."""

    base_offset: int
    position: int
    problem: str
    log_end: int


class RebuiltIndexes(Struct, frozen=True):
    """The segments at ``bases`` have no good index files: theirs were built in memory."""

    bases: tuple[int, ...]


class UnknownFiles(Struct, frozen=True):
    """``count`` files have names that mean nothing; ``names`` are the first of them."""

    count: int
    names: tuple[str, ...]


class StagedFiles(Struct, frozen=True):
    """``count`` staged files of an earlier run lie in the partition's directory."""

    count: int
    partition: TopicPartition


class GivenOption(StrEnum):
    """What a caller may give in place of what the directory or the clock says."""

    NOW = auto()
    LOG_START = auto()
    HIGH_WATERMARK = auto()
    FIRST_DIRTY = auto()
    UNCLEANABLE = auto()


class Lift(Struct, frozen=True):
    """``given`` is above ``actual``, the value that counts; of an offset ``limit`` may say why."""

    option: GivenOption
    given: int
    actual: int
    limit: Limit | None = None


class LiftNote(Struct, frozen=True):
    """A lift that stands, or that a writer would refuse."""

    lift: Lift
    stands: bool


class ClockBehind(Struct, frozen=True):
    """The clock, ``now_ms``, is earlier than the last line of the receipt at ``path``,
    ``last_ms``.
    """

    path: Path
    last_ms: int
    now_ms: int


class LacksVersions(Struct, frozen=True):
    """Records without the version that the strategy ranks by, or with one that is none."""

    header: str | None
    missing: int
    malformed: int


class WaitNote(Struct, frozen=True):
    """Tombstones and markers that have passed their horizon wait for ``readers``."""

    readers: ReaderWait


class LacksEstimate(Struct, frozen=True):
    """A plan has no estimate because of ``problem``, an error's text."""

    problem: str


class PartlyDone(Struct, frozen=True):
    """A round failed after ``groups`` of it were put in place, complete."""

    groups: int


Note = (
    SectionNote
    | RollNote
    | RemainsActive
    | TornTail
    | RebuiltIndexes
    | UnknownFiles
    | StagedFiles
    | LiftNote
    | ClockBehind
    | LacksVersions
    | WaitNote
    | LacksEstimate
    | PartlyDone
    | StaysNote
)
