"""Two logs side by side: the right one is held against the left one, part by part, in one pass.

Left is a log before cleaning and right the same log after it, or both are replicas. What can be
said of a batch or a record on the spot becomes a finding; what takes all records of a key is a row
for :mod:`keeplast.inspect.sorted_runs`. Memory does not grow with the logs.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from keeplast.columns import batches as t
from keeplast.columns.rows import HAS_KEY
from keeplast.errors import InvariantError
from keeplast.format.record import Record
from keeplast.inspect.log_facts import (
    ENDS_TRANSACTION,
    FieldComparison,
    HiddenRecords,
    LogFacts,
    control_type,
)
from keeplast.inspect.sorted_runs import (
    FLAGS,
    HORIZON,
    IS_OLD_FORMAT,
    OFFSET,
    ON_LEFT,
    ON_RIGHT,
    Rows,
    SortedRuns,
)
from keeplast.inspect.verified_log import Findings, VerifiedLog, VerifiedPart
from keeplast.model.hold import ReaderWait
from keeplast.model.partition import INT64_MAX
from keeplast.model.topic_config import TopicConfig
from keeplast.read.transactions import TransactionOutcome, is_transactional_data

DECODED_MAX = 10_000
"""Records that are decoded one by one to see in what they differ; after that they count as
changed."""


class Horizons(Struct, frozen=True):
    """What is known of time: the clock of each round and the horizon that it stamped.

    Empty when no time was given. ``readers`` are those that tombstones waited for in each round, by
    its receipt; without one none are known.
    """

    rounds: tuple[tuple[int, int], ...] = ()
    readers: tuple[ReaderWait | None, ...] = ()

    def problem(self, horizon: int, offset: int) -> str | None:
        """Say why what had this horizon (-1: none) at ``offset`` may not be gone, or None."""
        last = self.rounds[-1][0]
        if horizon >= 0:
            if horizon > last:
                return f"its delete horizon is {horizon}, now {last}"
            if self._was_let_go(0, horizon, offset):
                return None
            return f"readers were waited for who had not read it: its delete horizon is {horizon}"
        for i, (_, stamped) in enumerate(self.rounds):
            if stamped >= 0 and self._was_let_go(i + 1, stamped, offset):
                return None
        return "it had no delete horizon yet"

    def _was_let_go(self, first: int, horizon: int, offset: int) -> bool:
        """Say whether a round from number ``first`` on could remove what has this horizon."""
        for i in range(first, len(self.rounds)):
            readers = self.readers[i] if self.readers else None
            ends_at = horizon if readers is None else readers.ends_at(horizon, offset)
            if ends_at <= self.rounds[i][0]:
                return True
        return False

    def had_passed(self, rows: Rows) -> NDArray[np.bool_]:
        """Return the rows whose tombstone the last round could remove, surely."""
        now_ms, _ = self.rounds[-1]
        found: NDArray[np.bool_] = (rows[:, HORIZON] >= 0) & (rows[:, HORIZON] <= now_ms)
        readers = self.readers[-1] if self.readers else None
        if readers is not None:
            is_over = rows[:, HORIZON] <= now_ms - readers.max_ms
            found &= (rows[:, OFFSET] < readers.passed_to) | is_over
        return found


class ComparedGround(Struct, frozen=True):
    """What the comparison goes by.

    Below ``bound`` the right log may have been cleaned, from it on it must equal the left one. None
    says that they are replicas, with ``[start, end)`` in common. Below ``start`` the right log has
    nothing any more, by retention or ``DeleteRecords``. From ``indexed_to`` on records that are not
    aborted must still be there. ``last_offsets`` are those of batches that must be,
    ``marker_epochs`` the epoch of each producer whose markers must be.
    """

    bound: int | None
    start: int = 0
    end: int = INT64_MAX
    indexed_to: int = INT64_MAX
    horizons: Horizons = Horizons()
    last_offsets: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    marker_epochs: dict[int, int] = field(default_factory=dict)


class Compared(Struct):
    """What the comparison has found, by check.

    ``lost`` counts the left records that the right log lacks or has otherwise. ``foreign`` counts
    the right ones below the left log's end that the left log lacks. Of replicas neither is counted.
    """

    records: Findings = field(default_factory=Findings)
    transactions: Findings = field(default_factory=Findings)
    untouched: Findings = field(default_factory=Findings)
    horizons: Findings = field(default_factory=Findings)
    producers: Findings = field(default_factory=Findings)
    lost: int = 0
    foreign: int = 0


class Comparison:
    """One comparison; :meth:`run` fills :attr:`found` and the runs that it was given."""

    def __init__(
        self,
        left: tuple[VerifiedLog, LogFacts],
        right: tuple[VerifiedLog, LogFacts],
        ground: ComparedGround,
        runs: SortedRuns,
        seeds: NDArray[np.uint64],
        topic: TopicConfig,
    ) -> None:
        """Take both logs with their facts; records of a key rank as ``topic`` says."""
        self._topic = topic
        self._left, self._left_facts = left
        self._right, self._right_facts = right
        self._ground = ground
        self._runs = runs
        self._seeds = seeds
        self._bound = INT64_MAX if ground.bound is None else ground.bound
        self._are_replicas = ground.bound is None
        self.found = Compared()
        self._fields = FieldComparison(self.found.records, are_replicas=self._are_replicas)
        truth = self._right_facts if self._are_replicas else self._left_facts
        self._hidden = HiddenRecords(self._right, truth.transactions, self.found.transactions)
        self._left_hidden = (
            HiddenRecords(self._left, self._left_facts.transactions, self.found.transactions)
            if self._are_replicas
            else None
        )
        self._finished = -1
        self._decoded = 0

    def run(self) -> Compared:
        """Compare everything; returns what was found."""
        rights = self._right.parts(self._seeds, self._topic)
        right = next(rights, None)
        taken = 0
        for left in self._left.parts(self._seeds, self._topic):
            state = _Matched(left)
            if self._left_hidden is not None:
                self._left_hidden.add(left, 0, len(left.table))
            last_offset = left.last_offset
            while right is not None:
                beyond = np.flatnonzero(right.table[taken:, t.LAST_OFFSET] > last_offset)
                stop = taken + int(beyond[0]) if len(beyond) else len(right.table)
                self._match(left, state, right, taken, stop)
                taken = stop
                if stop < len(right.table):
                    break
                right, taken = next(rights, None), 0
            self._finish(left, state)
            self._finished = last_offset
        while right is not None:
            self._add_unknown(right, np.arange(taken, len(right.table)))
            right, taken = next(rights, None), 0
        return self.found

    def _match(
        self, left: VerifiedPart, state: _Matched, right: VerifiedPart, first: int, last: int
    ) -> None:
        """Find the counterparts of right's batches ``[first, last)`` in left's part."""
        numbers = np.arange(first, last)
        if not len(numbers):
            return
        self._hidden.add(right, first, last)
        bases = right.table[first:last, t.BASE_OFFSET]
        found = np.searchsorted(left.table[:, t.LAST_OFFSET], bases)
        inside = found < len(left.table)
        inside[inside] = left.table[found[inside], t.BASE_OFFSET] <= bases[inside]
        self._add_unknown_batches(right, numbers[~inside])
        numbers, found = numbers[inside], found[inside]
        state.batches[found] = True
        self._fields.add(left, found, right, numbers)
        self._check_untouched(left, found, right, numbers)
        self._match_records(left, state, right, first, last)

    def _check_untouched(
        self,
        left: VerifiedPart,
        found: NDArray[np.int64],
        right: VerifiedPart,
        numbers: NDArray[np.int64],
    ) -> None:
        above = left.table[found, t.BASE_OFFSET] >= self._bound
        found, numbers = found[above], numbers[above]
        differs = (left.digests(found, self._seeds) != right.digests(numbers, self._seeds)).any(
            axis=1
        )
        for i in found[differs].tolist():
            self.found.untouched.add(
                f"the batch lies at {self._bound} or above, where nothing may be cleaned, and has "
                "other bytes",
                offset=int(left.table[i, t.BASE_OFFSET]),
            )

    def _match_records(
        self, left: VerifiedPart, state: _Matched, right: VerifiedPart, first: int, last: int
    ) -> None:
        rows = np.flatnonzero((right.batch_of >= first) & (right.batch_of < last))
        if not len(rows):
            return
        found = np.searchsorted(left.offsets, right.offsets[rows])
        known = found < len(left.offsets)
        known[known] = left.offsets[found[known]] == right.offsets[rows[known]]
        self._add_unknown_rows(right, rows[~known])
        rows, found = rows[known], found[known]
        differs = (left.contents[found] != right.contents[rows]).any(axis=1)
        state.records[found[~differs]] = True
        for i, row in zip(found[differs].tolist(), rows[differs].tolist(), strict=True):
            state.records[i] = self._is_same_value(left, i, right, row)
        self._compare_outcomes(left, found, right, rows)

    def _is_same_value(self, left: VerifiedPart, i: int, right: VerifiedPart, row: int) -> bool:
        """Say in what two records differ; True when key and value are the same."""
        offset = int(left.offsets[i])
        if self._decoded >= DECODED_MAX:
            self.found.records.add("the record is another", offset=offset)
            return False
        self._decoded += 1
        ours, theirs = _record(left, i), _record(right, row)
        is_control = bool(left.table[left.batch_of[i], t.ATTRIBUTES] & t.CONTROL)
        names = [
            name
            for name in ("key", "value", "headers", "timestamp")
            if getattr(ours, name) != getattr(theirs, name)
        ]
        if names and is_control:
            self.found.records.add("the control record is another", offset=offset)
        elif names:
            self.found.records.add(f"{' and '.join(names)} changed", offset=offset, key=ours.key)
        return "key" not in names and "value" not in names

    def _compare_outcomes(
        self,
        left: VerifiedPart,
        found: NDArray[np.int64],
        right: VerifiedPart,
        rows: NDArray[np.int64],
    ) -> None:
        """Data whose transaction ended otherwise by the markers of the right log."""
        pairs = np.unique(np.stack([left.batch_of[found], right.batch_of[rows]]), axis=1)
        if not is_transactional_data(left.table[pairs[0]]).any():
            return
        ours = self._left_facts.transactions.of_batches(left.table[pairs[0]])
        theirs = self._right_facts.transactions.of_batches(right.table[pairs[1]])
        differs = ours != theirs
        if self._are_replicas:
            differs &= (ours != TransactionOutcome.OPEN) & (theirs != TransactionOutcome.OPEN)
        for k in np.flatnonzero(differs).tolist():
            row = left.table[pairs[0][k]]
            self.found.transactions.add(
                f"the transaction of producer {row[t.PRODUCER_ID]} was "
                f"{TransactionOutcome(int(ours[k])).name.lower()} and reads as "
                f"{TransactionOutcome(int(theirs[k])).name.lower()} now",
                offset=int(row[t.BASE_OFFSET]),
            )

    def _add_unknown(self, right: VerifiedPart, numbers: NDArray[np.int64]) -> None:
        """Batches of the right log beyond the end of the left one."""
        if not len(numbers):
            return
        self._hidden.add(right, int(numbers[0]), int(numbers[-1]) + 1)
        rows = np.flatnonzero(np.isin(right.batch_of, numbers))
        self._add_unknown_rows(right, rows)
        self._add_unknown_batches(right, numbers)

    def _add_unknown_batches(self, right: VerifiedPart, numbers: NDArray[np.int64]) -> None:
        """Empty batches that the left log has not; of others the records decide."""
        if self._are_replicas:
            return
        for i in numbers[right.table[numbers, t.COUNT] == 0].tolist():
            base = int(right.table[i, t.BASE_OFFSET])
            self.found.records.add("there was no such batch", offset=base)

    def _add_unknown_rows(self, right: VerifiedPart, rows: NDArray[np.int64]) -> None:
        """Records of the right log that the left one has not at this place."""
        if not len(rows):
            return
        late = right.offsets[rows] <= self._finished
        if self._are_replicas or late.any():
            self._emit(right, rows if self._are_replicas else rows[late], ON_RIGHT)
        if self._are_replicas:
            return
        self.found.foreign += int((right.offsets[rows] < self._left.end).sum())
        # A batch out of order is a finding already; its records may well have been there.
        is_stray = late & (self._right_facts.order.count > 0)
        for row in rows[~is_stray][:DECODED_MAX].tolist():
            offset = int(right.offsets[row])
            record = right.record(int(right.batch_of[row]), offset)
            key = None if record is None else record.key
            self.found.records.add("there was no such record", offset=offset, key=key)

    def _finish(self, left: VerifiedPart, state: _Matched) -> None:
        """Judge what of a part is missing, now that nothing of it can follow."""
        missing = np.flatnonzero(~state.records)
        self._emit(left, np.flatnonzero(state.records), ON_LEFT | ON_RIGHT)
        self._emit(left, missing, ON_LEFT)
        if self._are_replicas:
            return
        self.found.lost += len(missing)
        self._check_batches(left, state)
        self._check_missing(left, missing)

    def _check_batches(self, left: VerifiedPart, state: _Matched) -> None:
        has_expired = left.table[:, t.LAST_OFFSET] < self._ground.start
        lost = np.flatnonzero(~state.batches & ~has_expired)
        if not len(lost):
            return
        table = left.table[lost]
        ground = self._ground
        for base in table[table[:, t.BASE_OFFSET] >= self._bound, t.BASE_OFFSET].tolist():
            self.found.untouched.add(
                f"the batch lies at {self._bound} or above, where nothing may be cleaned, and is "
                "missing",
                offset=base,
            )
        for row in table[table[:, t.LAST_OFFSET] + 1 == self._bound]:
            self.found.producers.add(
                f"the last batch below the bound {self._bound} is missing",
                offset=int(row[t.BASE_OFFSET]),
            )
        is_last = np.isin(table[:, t.LAST_OFFSET], ground.last_offsets)
        is_marker = np.zeros(len(table), np.bool_)
        for i in np.flatnonzero(table[:, t.ATTRIBUTES] & t.CONTROL).tolist():
            epoch = ground.marker_epochs.get(int(table[i, t.PRODUCER_ID]))
            is_marker[i] = epoch is not None and epoch == table[i, t.PRODUCER_EPOCH]
        for row in table[(is_last | is_marker) & (table[:, t.PRODUCER_ID] >= 0)]:
            if not ground.horizons.rounds:
                self.found.producers.cannot_judge(
                    "last batches of producers are gone; they may have expired, and "
                    "the time is not given: --now-ms"
                )
                break
            self.found.producers.add(
                f"the last batch of producer {row[t.PRODUCER_ID]} is missing",
                offset=int(row[t.BASE_OFFSET]),
            )

    def _check_missing(self, left: VerifiedPart, missing: NDArray[np.int64]) -> None:
        """Markers before their horizon, and records that no round had looked for."""
        missing = missing[left.offsets[missing] >= self._ground.start]
        if not len(missing):
            return
        table = left.table[left.batch_of[missing]]
        is_control = table[:, t.ATTRIBUTES] & t.CONTROL != 0
        is_below = left.offsets[missing] < self._bound
        for i in missing[is_control & is_below].tolist():
            self._judge_marker(left, i)
        beyond = ~is_control & is_below & (left.offsets[missing] >= self._ground.indexed_to)
        if beyond.any():
            outcomes = self._left_facts.transactions.of_batches(table)
            for i in missing[beyond & (outcomes == TransactionOutcome.COMMITTED)].tolist():
                record = _record(left, i)
                self.found.untouched.add(
                    f"the round ended at offset {self._ground.indexed_to}, the record behind that "
                    "is missing",
                    offset=record.offset, key=record.key,
                )  # fmt: skip

    def _judge_marker(self, left: VerifiedPart, i: int) -> None:
        batch = int(left.batch_of[i])
        offset = int(left.offsets[i])
        if control_type(left.window, left.first + batch) not in ENDS_TRANSACTION:
            self.found.records.add("a control record that never goes is missing", offset=offset)
            return
        if not self._ground.horizons.rounds:
            self.found.horizons.cannot_judge(
                "transaction markers are gone, and the time is not given: --now-ms"
            )
            return
        problem = self._ground.horizons.problem(int(left.horizons()[batch]), offset)
        if problem is not None:
            self.found.horizons.add(f"the transaction marker is gone and {problem}", offset=offset)

    def _emit(self, part: VerifiedPart, chosen: NDArray[np.int64], sides: int) -> None:
        """Hand over what has a key and is committed: it can be the final record of its key."""
        if not len(chosen):
            return
        facts = self._left_facts if sides & ON_LEFT else self._right_facts
        batches = part.table
        outcomes = facts.transactions.of_batches(batches)
        can_win = (outcomes == TransactionOutcome.COMMITTED) & (
            batches[:, t.ATTRIBUTES] & t.CONTROL == 0
        )
        wanted = can_win[part.batch_of[chosen]] & (part.flags[chosen] & HAS_KEY != 0)
        wanted &= part.offsets[chosen] < self._bound
        chosen = chosen[wanted]
        rows = part.rows(chosen, sides)
        rows[:, FLAGS] |= (batches[part.batch_of[chosen], t.MAGIC] < 2) * IS_OLD_FORMAT
        outside = (rows[:, OFFSET] < self._ground.start) | (rows[:, OFFSET] >= self._ground.end)
        rows[outside, FLAGS] |= ON_LEFT | ON_RIGHT
        self._runs.add(rows)


class _Matched:
    """Which batches and records of a left part the right log has."""

    def __init__(self, part: VerifiedPart) -> None:
        self.batches = np.zeros(len(part.table), np.bool_)
        self.records = np.zeros(len(part.offsets), np.bool_)


def _record(part: VerifiedPart, i: int) -> Record:
    record = part.record(int(part.batch_of[i]), int(part.offsets[i]))
    if record is None:
        raise InvariantError(
            f"a record is gone between two readings. offset={part.offsets[i]}", code="K901"
        )
    return record
