"""Whatever partitions there are, the loop comes to rest: turns that change nothing end.

The work is as bad as it can be: some of its partitions are due at every look, and their rounds are
skipped, leave every byte, fail, or are lost to another process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum

from hypothesis import given
from hypothesis import strategies as st

from keeplast.cleaner.log_order import Candidate, Choice
from keeplast.errors import UnavailableError
from keeplast.model.partition import TopicPartition
from keeplast.rewrite.stats import Stats
from keeplast.service.daemon import Daemon, TurnLedger
from keeplast.service.live import Wish
from keeplast.service.snapshot import DirectoryLook, TierTotals
from keeplast.survey.report import RoundReport
from tests.support.daemon_world import Narrated, Published
from tests.support.manual_clock import ManualClock

SEGMENT_BYTES = 100


class Kind(StrEnum):
    """What a round of a partition does, again and again; ``CLEANS`` ends after so many rounds."""

    CLEANS = "cleans"
    SKIPS = "skips"
    LEAVES_ALL = "leaves all"
    FAILS = "fails"
    IS_LOST = "is lost"


class NappingClock(ManualClock):
    """A clock whose every nap takes a millisecond at least: a rest of one would never end."""

    def sleep(self, seconds: float) -> None:
        self.advance(max(round(seconds * 1000), 1))


class BadWork:
    """Partitions that are due at every look, for which a round takes ``round_ms``."""

    def __init__(
        self, kinds: Sequence[Kind], rounds: int, *, slots: int, backoff_ms: int, round_ms: int
    ) -> None:
        self.clock = NappingClock(0)
        self.narrated = Narrated()
        self.place = "the work"
        self.slots = slots
        self.tier_totals: TierTotals | None = None
        self.directory_look: DirectoryLook | None = None
        self.ledger = TurnLedger(self.clock, self.narrated, lambda request, error: None, backoff_ms)
        self.kinds = {TopicPartition("t", at): kind for at, kind in enumerate(kinds)}
        self.left = {
            each: rounds for each, kind in self.kinds.items() if kind is Kind.CLEANS
        }  # fmt: skip
        self.turns: list[tuple[TopicPartition, ...]] = []
        self._round_ms = round_ms

    def holding(self) -> AbstractContextManager[object]:
        return nullcontext()

    def stop(self) -> None: ...

    def begin(self) -> None: ...

    def refresh(self) -> None: ...

    def grant(self, wish: Wish) -> None: ...

    def forget(self) -> None: ...

    def look(self) -> None:
        self.ledger.looked_ms = self.clock.now_ms()

    def settle(self) -> bool:
        return False

    def refused(self) -> Mapping[TopicPartition, Exception]:
        return {}

    def candidates(self) -> Sequence[Candidate]:
        schedule, now_ms = self.ledger.schedule, self.clock.now_ms()
        return [
            Candidate(each, 0.5, passed_over=schedule.history(each).passed_over)
            for each in self.kinds
            if self.left.get(each, 1) and not schedule.is_waiting(each, now_ms)
        ]

    def clean(self, choices: Sequence[Choice]) -> tuple[TopicPartition, ...]:
        self.turns.append(tuple(choice.partition for choice in choices))
        ended = []
        for partition in self.turns[-1]:
            self.clock.advance(self._round_ms)
            report = self._round(partition)
            if report is None:
                continue
            ended.append(partition)
            now_ms = self.clock.now_ms()
            self.ledger.schedule.finished(partition, report, now_ms)
            if report.failure is not None:
                self.ledger.schedule.failed(
                    partition, report.failure, backoff_ms=self.ledger.backoff_ms, now_ms=now_ms
                )
        return tuple(ended)

    def _round(self, partition: TopicPartition) -> RoundReport | None:
        match self.kinds[partition]:
            case Kind.CLEANS:
                self.left[partition] -= 1
                return RoundReport(first_dirty=0, end_offset=1, stats=Stats())
            case Kind.SKIPS:
                return RoundReport(first_dirty=5, skipped=True)
            case Kind.LEAVES_ALL:
                stats = Stats(bytes_read=SEGMENT_BYTES, bytes_written=SEGMENT_BYTES)
                return RoundReport(
                    first_dirty=5, end_offset=5, is_expired_round=True, stats=stats
                )  # fmt: skip
            case Kind.FAILS:
                return RoundReport(failure=UnavailableError("not now"))
            case Kind.IS_LOST:
                return None


def is_idle_stretch(work: BadWork, turns: Sequence[tuple[TopicPartition, ...]]) -> bool:
    """Say whether no round of ``turns`` changed anything."""
    return not any(work.kinds[each] is Kind.CLEANS for turn in turns for each in turn)


bad_works = st.builds(
    BadWork,
    st.lists(st.sampled_from(Kind), min_size=1, max_size=7),
    st.integers(1, 3),
    slots=st.integers(1, 3),
    backoff_ms=st.sampled_from([0, 300, 15_000]),
    round_ms=st.sampled_from([0, 50, 1_000, 40 * 60_000]),
)


@given(work=bad_works)
def test_with_once_any_set_of_partitions_comes_to_rest_in_a_bounded_number_of_turns(
    work: BadWork,
) -> None:
    changing = sum(work.left.values())
    turns_max = (changing + 1) * len(work.kinds)

    def count(choices: Sequence[Choice]) -> None:
        assert len(work.turns) < turns_max

    work.narrated.on_chosen = count
    Daemon(work, work.clock, narrator=work.narrated, observer=Published(), is_once=True).run()
    assert not any(work.left.values())
    assert {each for turn in work.turns for each in turn} == set(work.kinds)


@given(work=bad_works)
def test_without_once_a_stretch_that_changes_nothing_has_a_turn_of_each_and_then_a_pause(
    work: BadWork,
) -> None:
    since_pause: list[int] = [0]
    pauses: list[float] = []
    daemon = Daemon(work, work.clock, narrator=work.narrated, observer=Published())

    def count(choices: Sequence[Choice]) -> None:
        stretch = [*work.turns[since_pause[0] :], tuple(each.partition for each in choices)]
        tail = stretch[-len(work.kinds) - 1 :]
        assert not is_idle_stretch(work, tail) or len(tail) <= len(work.kinds)

    def idle() -> None:
        since_pause[0] = len(work.turns)
        pauses.append(work.narrated.idle_seconds[-1])
        if len(pauses) == 3:
            daemon.stop()

    work.narrated.on_chosen, work.narrated.on_idle = count, idle
    daemon.run()
    assert not any(work.left.values())
    assert min(pauses) > 0
