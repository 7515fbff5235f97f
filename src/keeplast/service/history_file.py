"""The history that a loop keeps of its place: in memory, and in a file next to its receipts.

What a reader must not break:

- No round waits for it: the loop's thread leaves a snapshot and goes on. All else, the file
  included, is done in a thread of its own.
- Nothing is decided by it. What cannot be read is put aside, what cannot be written stays in
  memory, and each is said.
- The file is replaced as a whole: a reader finds one that is whole. If two loops have the same
  file, the one that wrote last counts.

A crash loses a quarter of an hour of it at most.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable
from typing import Self

from keeplast.clock import Clock
from keeplast.errors import CompactionError, UnavailableError, error_text
from keeplast.log.files import FileStat, FileSystem
from keeplast.service.history import (
    HISTORY_BYTES_MAX,
    SPANS,
    Entry,
    History,
    Series,
    Span,
    look_entries,
    read_history,
    round_entries,
)
from keeplast.service.receipt_shelf import ReceiptShelf
from keeplast.service.snapshot import Snapshot

STEP_SECONDS = 15.0
WAITING_MAX = 100_000
"""Figures of rounds that wait for the thread; of more than can end meanwhile the oldest go."""


class PlaceHistory:
    """The history of a place, for several threads.

    Of a loop of this process it is kept here, from :meth:`__enter__` on. Otherwise it is what the
    file has when somebody asks. ``problem`` says why it may be older than that, empty if it is not.
    """

    def __init__(
        self,
        files: FileSystem,
        shelf: ReceiptShelf,
        clock: Clock,
        warned: Callable[[str], None] = lambda _: None,
    ) -> None:
        """Take the receipts next to which the file is; where there are none it is in memory alone.

        What they say of earlier rounds counts where no history is kept yet.
        """
        self._files = files
        self._shelf = shelf
        self._clock = clock
        self._since_ms = clock.now_ms()
        self._warned = warned
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeplast-history", daemon=True)
        self._history = History()
        self._seen: FileStat | None = None
        self._snapshot: Snapshot | None = None
        self._rounds: deque[Entry] = deque(maxlen=WAITING_MAX)
        self._written: int | None = None
        self.problem = ""
        beside = [each.with_name(f"{each.name}.history") for each in shelf.paths]
        self.path = beside[-1] if beside else None

    def series(self, topic: str, span: Span, now_ms: int) -> Series:
        """Return a topic's figures up to now."""
        if self._thread.ident is None:
            self._try(self._read)
        with self._lock:
            return self._history.series(topic, span, now_ms)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Write what is not written yet."""
        self._ended.set()
        self._thread.join()
        self.keep(ends=True)

    def published(self, snapshot: Snapshot) -> None:
        """Take a snapshot, and the rounds that led to it; never waits for a file."""
        self._snapshot = snapshot
        self._rounds.extend(
            entry
            for each in (snapshot.partitions if snapshot.cleaned else ())
            if each.partition in snapshot.cleaned
            and (done := each.last_round) is not None
            and (stats := done.stats) is not None
            and done.failure is None
            for entry in round_entries(
                each.partition.topic, each.last_round_ms or snapshot.looked_ms,
                stats.bytes_read - stats.bytes_written, stats.total_seconds,
            )
        )  # fmt: skip

    def _run(self) -> None:
        while not self._ended.wait(STEP_SECONDS):
            self.keep()

    def keep(self, *, ends: bool = False) -> None:
        """Keep what was published until now; each new slot has it written down, and the end."""
        self._try(lambda: self._keep(ends=ends))

    def _try(self, do: Callable[[], object]) -> None:
        """Do something. Nothing is raised: what fails is said, and rounds go on."""
        before, self.problem = self.problem, ""
        try:
            do()
        except Exception as error:  # noqa: BLE001 - no history is worth a round
            problem = f"the history cannot be read or kept now, and is tried again. problem={error}"
            self.problem = error_text(UnavailableError(problem, code="K721"))
            if self.problem != before:
                self._warned(self.problem)

    def _keep(self, *, ends: bool) -> None:
        snapshot, now_ms = self._snapshot, self._clock.now_ms()
        if snapshot is None:
            return
        if self._written is None:
            self._begin()
        with self._lock:
            self._history.make_room({each.partition.topic for each in snapshot.partitions})
            # The same look may be kept twice: of what is measured the greatest counts.
            self._history.add(look_entries(snapshot.partitions, snapshot.looked_ms), now_ms)
            done = [self._rounds.popleft() for _ in range(len(self._rounds))]
            self._history.add(done, now_ms)
        before, self._written = self._written, now_ms // SPANS[0].slot_ms
        if self.path is not None and (ends or before != self._written):
            is_there = self._seen is not None and self._files.exists(self.path)
            if is_there and self._files.stat(self.path) != self._seen:
                self._warned(
                    f"another loop keeps its history in {self.path.name} too: that of the last one "
                    "to write counts; give each loop a receipt file of its own"
                )
            try:
                self._files.write_durable(self.path, self._history.encode())
            except OSError:
                # On a full disk what was written so far would take the room of rounds.
                with contextlib.suppress(OSError):
                    self._files.unlink(self.path.with_name(f"{self.path.name}.tmp"))
                raise
            self._seen = self._files.stat(self.path)

    def _begin(self) -> None:
        """Read what earlier loops kept, or where they kept nothing what their receipts say."""
        try:
            is_there = self._read()
        except (CompactionError, OSError) as error:
            assert self.path is not None
            aside, is_there = self.path.with_name(f"{self.path.name}.unreadable"), False
            # What cannot be put aside is not written over: this raises, and is tried again.
            self._files.rename(self.path, aside)
            self._warned(f"the history was put aside as {aside.name}: {error_text(error)}")
        if not is_there:
            self._shelf.refresh()
            # Rounds of this loop have come, or come, with its snapshots.
            earlier = (
                entry
                for each in self._shelf.lines()
                if each.round is not None and each.partition is not None
                and each.has_ended and each.at_ms < self._since_ms
                for entry in round_entries(
                    each.partition.topic, each.at_ms,
                    each.round.bytes_read - each.round.bytes_written, each.round.seconds,
                )
            )  # fmt: skip
            self._history.add(earlier, self._clock.now_ms())

    def _read(self) -> bool:
        """Take what the file has, where it has changed; says whether there is one."""
        if self.path is None or not self._files.exists(self.path):
            return False
        found = self._files.stat(self.path)
        if found != self._seen:
            read = read_history(self._files.read_bytes(self.path, HISTORY_BYTES_MAX), self.path)
            with self._lock:
                self._history = read
            self._seen = found
        return True
