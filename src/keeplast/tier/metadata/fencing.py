"""Transactions of the metadata store: who may make one, and what is known when its end is lost.

What a reader must not break:

1. A change of a partition locks its row first. In the same transaction it compares the row with the
   leader epoch of its author and the process that holds the partition. For an older epoch, or
   another holder, it is a :class:`FencedError` and changes nothing (I-19). A claim, which makes the
   newest epoch, is the one change that compares with its predecessor instead.
2. It raises the partition's version, so that an earlier reader can see the change.
3. A commit has an id that its author chose, kept by the transaction itself. When the answer is lost
   at the end, the outcome is looked up by that id under the partition's lock, and never guessed. A
   change without an id is CommitUnknownError then: it is one that may be done twice.

What a change writes is said in :mod:`.metadata_store`. Source: tiering.md sections 9.1 to 9.3.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, Engine, RowMapping, insert
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from keeplast.clock import Clock
from keeplast.errors import CommitUnknownError, ConflictError, FencedError, UnavailableError
from keeplast.model.partition import TopicPartition
from keeplast.model.text import without_secrets
from keeplast.tier.metadata import schema
from keeplast.tier.metadata.database import READING, StoreClock, StoreTime, time_of
from keeplast.tier.metadata.rows import (
    find_commit,
    find_partition,
    prune_commits,
    raise_version,
)
from keeplast.tier.metadata.schema import holder_of
from keeplast.tier.state.holder import Holder, new_holder
from keeplast.tier.state.partition_state import PartitionState


class Transactions:
    """The ways to change a store, and to read it. Safe for several threads."""

    def __init__(
        self, engine: Engine, clock: Clock, holder: Holder | None = None,
        time: StoreTime | None = None,
    ) -> None:  # fmt: skip
        """Take an engine whose tables are there; ``holder`` is this process by default.

        ``time`` is the database's where it has a clock, else the host's, which is ``clock``.
        """
        self._engine = engine
        self.listener: Callable[[], None] | None = None
        self.time = time_of(engine, clock) if time is None else time
        self.clock = StoreClock(self.time, clock, self.reading)
        self.holder = new_holder() if holder is None else holder

    def close(self) -> None:
        """Close every connection."""
        self._engine.dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """One transaction that changes nothing, waits for no other one and sees one moment."""
        try:
            with self._engine.connect() as connection:
                yield connection.execution_options(**READING[self._engine.dialect.name])
        except DBAPIError as error:
            raise _unavailable(error) from error

    @contextmanager
    def waiting(self) -> Iterator[Connection]:
        """One transaction that changes nothing and may wait for a lock."""
        try:
            with self._engine.connect() as connection:
                yield connection
        except DBAPIError as error:
            raise _unavailable(error) from error

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """One transaction that compares nothing: for what no leader owns.

        What fails in COMMIT itself has an unknown outcome. ConflictError for a row that is there.
        """
        try:
            with self._engine.connect() as connection:
                yield connection
                try:
                    connection.commit()
                except DBAPIError as error:
                    raise CommitUnknownError(
                        "the metadata store did not say whether it committed. "
                        f"error={_words_of(error)}",
                        code="K330",
                    ) from error
        except IntegrityError as error:
            raise ConflictError(
                f"it is there already. error={_words_of(error)}", code="K329"
            ) from error
        except SQLAlchemyError as error:
            raise _unavailable(error) from error

    @contextmanager
    def claiming(
        self, partition: TopicPartition, *, epoch: int, owner: str,
        instead_of: PartitionState | None,
    ) -> Iterator[tuple[Connection, RowMapping]]:  # fmt: skip
        """One transaction that makes this holder the owner's at ``epoch``; the row is as before.

        FencedError unless the epoch is newer, or the owner's own. ConflictError when the partition
        was claimed since ``instead_of`` was read.
        """
        with self.writing() as connection:
            row = find_partition(connection, partition, locks=True)
            current = int(row["leader_epoch"])
            if epoch < current or (epoch == current and owner != row["owner"]):
                raise _explain_fence(partition, epoch, current)
            if instead_of is not None and instead_of.fence != (current, row["holder"]):
                raise ConflictError(
                    f"another process took the partition over first. partition={partition}",
                    code="K331",
                )
            raise_version(
                connection, row, leader_epoch=epoch, owner=owner, holder=self.holder.id,
                holder_process=self.holder.to_json(),
                held_since_ms=self.time.now_ms(connection),
            )  # fmt: skip
            yield connection, row

    @contextmanager
    def owned(
        self, partition: TopicPartition, epoch: int, holder: Holder | None = None
    ) -> Iterator[tuple[Connection, RowMapping]]:
        """One transaction of the owner, which raises the version; FencedError for any other
        process.

        ``holder`` is the process that must hold the partition, instead of this process.
        """
        with self.writing() as connection:
            row = find_partition(connection, partition, locks=True)
            _check_fence(partition, row, epoch, self.holder if holder is None else holder)
            yield connection, row
            raise_version(connection, row)

    @contextmanager
    def ending(
        self, partition: TopicPartition, epoch: int
    ) -> Iterator[tuple[Connection, RowMapping]]:
        """One transaction of the owner that may take the partition's row with it."""
        with self.writing() as connection:
            row = find_partition(connection, partition, locks=True)
            _check_fence(partition, row, epoch, self.holder)
            yield connection, row

    @contextmanager
    def committing(
        self, partition: TopicPartition, commit_id: str, epoch: int, kind: str,
        holder: Holder | None = None,
    ) -> Iterator[tuple[Connection, RowMapping]]:  # fmt: skip
        """One transaction of the owner whose outcome can be looked up, and is if it must be.

        ConflictError when the answer was lost and the commit did not happen; CommitUnknownError
        only when it could not be looked up either. ``listener`` hears of it first.
        """
        if self.listener is not None:
            self.listener()
        try:
            with self._inserting_commit(partition, commit_id, epoch, kind, holder) as found:
                yield found
        except CommitUnknownError as unknown:
            try:
                with self.waiting() as connection:
                    # A transaction whose connection was lost in the middle of its COMMIT may still
                    # be under way in the server; it holds the partition's row until it is over.
                    find_partition(connection, partition, locks=True)
                    happened = find_commit(connection, commit_id) is not None
            except UnavailableError:
                raise unknown from None
            if not happened:
                raise ConflictError(
                    f"the commit did not happen; what it belongs to is done again. id={commit_id}",
                    code="K329",
                ) from unknown

    @contextmanager
    def _inserting_commit(
        self, partition: TopicPartition, commit_id: str, epoch: int, kind: str,
        holder: Holder | None,
    ) -> Iterator[tuple[Connection, RowMapping]]:  # fmt: skip
        """A transaction that keeps its id, and takes old ones away: there are not ever more."""
        with self.owned(partition, epoch, holder) as (connection, row):
            now_ms = self.time.now_ms(connection)
            prune_commits(connection, int(row["id"]), now_ms=now_ms)
            connection.execute(
                insert(schema.COMMITS).values(
                    id=commit_id, partition_id=row["id"], epoch=epoch, kind=kind,
                    version=int(row["version"]) + 1, at_ms=now_ms,
                )
            )  # fmt: skip
            yield connection, row


def _check_fence(partition: TopicPartition, row: RowMapping, epoch: int, holder: Holder) -> None:
    """FencedError unless the row has this epoch and this holder."""
    if int(row["leader_epoch"]) != epoch:
        raise _explain_fence(partition, epoch, int(row["leader_epoch"]))
    if row["holder"] != holder.id:
        raise FencedError(
            "another process of the same owner has taken the partition over; stop. "
            f"partition={partition} owner={row['owner']} epoch={epoch} {holder_of(row)}",
            code="K331",
        )


def _explain_fence(partition: TopicPartition, epoch: int, current: int) -> FencedError:
    return FencedError(
        "a newer leader owns the partition; stop. "
        f"partition={partition} epoch={epoch} current={current}",
        code="K332",
    )


def _unavailable(error: Exception) -> UnavailableError:
    return UnavailableError(
        f"the metadata store cannot be reached or is busy. error={_words_of(error)}", code="K323"
    )


def _words_of(error: Exception) -> str:
    """Return the driver's own words, in a line: the library adds an address that does not help."""
    words = " ".join(str(getattr(error, "orig", None) or error).split())
    return without_secrets(words)
