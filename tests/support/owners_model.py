"""What a broker's log has promised, and whether a read-committed reader of a store gets it.

The law of compaction, at the end of what is read: every record that is returned was appended and
committed, is at its offset and not below the log start. Of each key the record that decides among
those below the end is returned, unless what decides lies behind the end, or outranks it below the
log start and is gone with that; a tombstone may be gone when its time has passed, and then nothing
older of its key may be seen. By timestamp or header nothing remembers then what it outranked: a
record that comes later, or may not be cleaned yet, is there again, whatever its version.

Where it is not known that deletes are missing, for a clock was wrong meanwhile, every record that
is returned was appended at its offset, and without transactions the one that decides is among them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from msgspec import Struct

from keeplast.format import txn_index
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.format.message_set import read_batches
from keeplast.format.record import Record
from keeplast.format.txn_index import AbortedTransaction
from tests.support.reader import DecodedBatch, committed_records, decode_records
from tests.support.reference_cleaner import Rank
from tests.support.tier_world_hosts import by_markers
from tests.support.tier_world_model import Model
from tests.support.tier_world_stores import require


class Piece(Struct, frozen=True):
    """The batches of a segment, and what its transaction index names."""

    batches: tuple[DecodedBatch, ...]
    aborted: tuple[AbortedTransaction, ...]


def decode_piece(data: bytes, index: bytes) -> Piece:
    """Return what a segment's files say."""
    return Piece(tuple(map(decode_records, read_batches(data))), tuple(txn_index.decode(index)))


Decides = Callable[[Record], Rank]
"""What decides between records of a key: the greatest stays."""


class Promise(Model):
    """The log that a broker has promised."""

    def __init__(self, decides: Decides) -> None:
        """Start empty."""
        super().__init__()
        self.decides = decides
        self._kept: frozenset[int] = frozenset()
        self._kept_end = 0
        self._gone: dict[int, int] = {}
        """Offsets of tombstones whose time has come, each with where what was read ended then."""

    def take(self, kept: Iterable[int], end: int) -> None:
        """Promise of what lies below ``end`` only what is at these offsets.

        A broker that cleans by offset promises no more of what another strategy would keep to a
        store that begins with its log.
        """
        self._kept, self._kept_end = frozenset(kept), end
        self._gone.clear()

    def lose(self, lineage: Sequence[LeaderEpoch], end: int) -> None:
        """Take a new leader's log as the truth, which lacks what was acknowledged behind it."""
        self.acknowledged = min(self.acknowledged, end)
        self._gone = {offset: min(to, end) for offset, to in self._gone.items() if offset < end}
        self._acknowledged = [w for w in self._acknowledged if w.base_offset < end]
        self.adopt(lineage, end)

    def stable_end(self, end: int) -> int:
        """Return up to where a log that ends at ``end`` is decided by what lies below it."""
        return min([end, *self.open_transactions(end).values()])

    def state(self, start: int, end: int) -> dict[bytes | None, Record]:
        """Return the record that decides for each key among those of ``[start, end)``."""
        found: dict[bytes | None, Record] = {}
        for record in self.committed(start, end):
            is_promised = record.offset >= self._kept_end or record.offset in self._kept
            if not is_promised:
                continue
            known = found.get(record.key)
            if known is None or self._gives_way(known, record):
                found[record.key] = record
        return found

    def _gives_way(self, known: Record, record: Record) -> bool:
        gone_to = self._gone.get(known.offset)
        is_late = gone_to is not None and record.offset >= gone_to
        return is_late or self.decides(record) >= self.decides(known)

    def check_pieces(
        self, pieces: Sequence[Piece], *, start: int, end: int, fresh_from_ms: int, where: str,
        dirty_from: int, misses_deletes: bool = False,
    ) -> None:  # fmt: skip
        """AssertionError unless readers of a log of ``pieces`` get from ``start`` what they may.

        Both readers: who knows aborted transactions from indexes, and who knows them from markers.
        Tombstones from ``fresh_from_ms`` on must be there. From ``dirty_from`` on nothing is clean.
        ``misses_deletes`` says that tombstones and markers may have been dropped that no host could
        miss.
        """
        stable = self.stable_end(end)
        batches = [batch for piece in pieces for batch in piece.batches]
        entries = tuple(entry for piece in pieces for entry in piece.aborted)
        readings = {
            "indexes": committed_records(batches, entries, start),
            "markers": by_markers(batches, start),
        }
        found = self.appended(start, stable) if misses_deletes else self.committed(start, stable)
        may_see = {record.offset: record for record in found}
        newest = self.state(start, stable)
        # What has outranked a record took it away, also when it lies below the log start by now.
        for key, lost in self.state(0, start).items():
            if key in newest and self.decides(lost) > self.decides(newest[key]):
                del newest[key]
        behind = self.state(stable, self.decided_end())
        for name, records in readings.items():
            given = [record for record in records if record.offset < stable]
            self._check_given(given, may_see, f"{where} by={name} range={start}..{stable}")
            if misses_deletes:
                self._check_kept(given, newest, behind, where)
                continue
            self._check_newest(
                given, newest, behind, fresh_from_ms, f"{where} by={name} range={start}..{stable}",
                end=stable, dirty_from=dirty_from,
            )  # fmt: skip

    def _check_given(self, given: Iterable[Record], may_see: dict[int, Record], where: str) -> None:
        last = -1
        for record in given:
            require(record.offset > last, f"offset {record.offset} behind {last}. {where}")
            last = record.offset
            expected = may_see.get(record.offset)
            require(
                expected == record,
                "read what was not appended, not committed, or cut. "
                f"expected={expected} found={record} {where}",
            )

    def appended(self, start: int, end: int) -> list[Record]:
        """Return the records of ``[start, end)``, those of aborted transactions too."""
        batches = [w for w in self.log if w.base_offset < end and w.next_offset > start]
        return [r for w in batches for r in w.records if start <= r.offset < end]

    def _check_kept(
        self, given: Sequence[Record], newest: dict[bytes | None, Record],
        behind: dict[bytes | None, Record], where: str,
    ) -> None:  # fmt: skip
        """Compare what must be there although deletes may be missing: values that decide.

        Not with transactions: what was aborted and has lost its marker may supersede them.
        """
        if self.aborted():
            return
        there = set(given)
        for key, want in newest.items():
            later = behind.get(key)
            is_overwritten = later is not None and self.decides(later) >= self.decides(want)
            require(
                is_overwritten or want.value is None or want in there,
                f"a committed record is not read. key={key!r} newest={want} {where}",
            )

    def _check_newest(
        self, given: Iterable[Record], newest: dict[bytes | None, Record],
        behind: dict[bytes | None, Record], fresh_from_ms: int, where: str, *, end: int,
        dirty_from: int,
    ) -> None:  # fmt: skip
        seen: dict[bytes | None, Record] = {}
        for record in given:
            known = seen.get(record.key)
            if known is None or self.decides(record) >= self.decides(known):
                seen[record.key] = record
        for key, want in newest.items():
            later = behind.get(key)
            if later is not None and self.decides(later) >= self.decides(want):
                continue
            got = seen.get(key)
            facts = f"key={key!r} newest={want} read={got} {where}"
            if want.value is not None:
                require(got == want, f"a committed record is not read. {facts}")
            elif want.timestamp >= fresh_from_ms:
                require(got == want, f"a fresh tombstone is not read. {facts}")
            elif got is None:
                self._gone.setdefault(want.offset, end)
            elif got.value is not None:
                # By version: what may not be cleaned yet outlives the tombstone that outranks it.
                is_late = got.offset > want.offset and got.offset >= dirty_from
                require(is_late, f"a deleted key came back. {facts} dirty_from={dirty_from}")
                self._gone.setdefault(want.offset, dirty_from)
