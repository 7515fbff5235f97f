"""What pages are made from: one value, made now and then, and read by any number of browsers.

Of a loop it is made from the loop's last snapshot. Where nothing runs, it is made from a look that
is repeated only while a browser watches, and takes two percent of a core at most. Each request gets
the last one at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from keeplast.clock import Clock
from keeplast.config.settings import Settings
from keeplast.errors import CompactionError, error_text
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition
from keeplast.model.text import without_secrets
from keeplast.service.gauges import GaugeObserver
from keeplast.service.live import Control, LiveProgress
from keeplast.service.receipt_shelf import ReceiptLine, ReceiptShelf
from keeplast.service.snapshot import DirectoryLook, Snapshot
from keeplast.service.status import DirectoryStatus

if TYPE_CHECKING:
    from keeplast.service.attached_report import ClusterStatus

    # Not needed to show a directory, and heavy.
    from keeplast.service.store_facts import StoreOutlook
    from keeplast.store.status import TierStatus
    from keeplast.tier.state.kept_rounds import RoundDay

PAUSE_SECONDS_MIN = 5.0
IDLE_SHARE = 50
"""A look is followed by a pause of so many times what it took."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaceFacts:
    """What a look found of a store or a live cluster, and the settings that counted."""

    tiers: tuple[TierStatus, ...] = ()
    given_up: tuple[TopicPartition, ...] = ()
    attached: ClusterStatus | None = None
    round_days: tuple[RoundDay, ...] = ()
    outlooks: Mapping[TopicPartition, StoreOutlook] = field(default_factory=dict)
    settings: Settings | None = None


@dataclass(frozen=True, slots=True)
class ConsoleView(PlaceFacts):
    """Everything known of one place at ``now_ms``.

    ``status`` is of a data directory, ``tiers`` of a store, ``attached`` of a live cluster. Of a
    store, ``given_up`` are partitions with only objects left, ``round_days`` is what every
    host's rounds did, and ``outlooks`` are what comes next. ``settings`` are those of all of it.
    ``snapshot`` is the loop's, None where nothing runs. ``problem`` is why the last look failed;
    the rest is then older. ``serial`` differs from one view to the next.
    """

    place: str
    now_ms: int
    status: DirectoryStatus | None = None
    snapshot: Snapshot | None = None
    receipts: tuple[ReceiptLine, ...] = ()
    unreadable_receipts: int = 0
    problem: str | None = None
    serial: int = 0


class ViewSource(Protocol):
    """Where views come from, and what else pages show."""

    @property
    def shelf(self) -> ReceiptShelf:
        """Return the receipts."""
        ...

    @property
    def live(self) -> LiveProgress | None:
        """Return how far the loop is, None where nothing runs."""
        ...

    @property
    def control(self) -> Control | None:
        """Return what the loop may be asked for, None where nothing runs."""
        ...

    @property
    def gauges(self) -> GaugeObserver:
        """Return what metrics are made from."""
        ...

    def view(self) -> ConsoleView:
        """Return the newest view; UnavailableError before the first. May join what is new."""
        ...


@dataclass(frozen=True, slots=True)
class Looked(PlaceFacts):
    """What one look found: of a directory, of a store, or of a live cluster.

    ``settings`` are those that counted, where no directory's look has them.
    """

    directory: DirectoryLook | None = None
    now_ms: int = 0


class Watcher:
    """Looks by itself, in a thread, while pages ask; the first look is made at once."""

    live: LiveProgress | None = None
    control: Control | None = None
    pause_seconds = PAUSE_SECONDS_MIN

    def __init__(
        self,
        place: str,
        look: Callable[[], Looked],
        clock: Clock,
        files: FileSystem,
        shelf: ReceiptShelf,
        *,
        endures: bool = False,
    ) -> None:
        """Take how to look; ``look`` raises CompactionError or OSError when it cannot.

        ``endures`` is for a console next to a loop, which goes on whatever cannot be looked at. A
        first look that fails is then shown on the pages, as a later one is.
        """
        self._endures = endures
        self._place = place
        self._look = look
        self._clock = clock
        self._files = files
        self.shelf = shelf
        self.gauges = GaugeObserver()
        self._asked = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeplast-look", daemon=True)
        self._view = ConsoleView(place, 0)
        self._took = 0.0

    def __enter__(self) -> Watcher:
        """Look once, with each error as an exception unless it endures; go on in a thread."""
        try:
            self._refresh()
        except (CompactionError, OSError) as error:
            if not self._endures:
                raise
            self._failed(error)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End after the look under way."""
        self._ended.set()
        self._asked.set()
        self._thread.join()

    def view(self) -> ConsoleView:
        """Return the last view at once, and have another one made."""
        self._asked.set()
        return self._view

    def _run(self) -> None:
        while not self._ended.wait(max(self.pause_seconds, IDLE_SHARE * self._took)):
            self._asked.wait()
            self._asked.clear()
            if self._ended.is_set():
                return
            try:
                self._refresh()
            except (CompactionError, OSError) as error:
                self._failed(error)
            except Exception as error:  # noqa: BLE001 - the loop that owns every look
                self._failed(error)

    def _failed(self, error: Exception) -> None:
        problem = without_secrets(error_text(error))
        self._view = replace(self._view, problem=problem, serial=self._view.serial + 1)

    def _refresh(self) -> None:
        started = self._clock.seconds()
        looked = self._look()
        last_rounds = self.shelf.refresh()
        found = looked.directory
        self._view = ConsoleView(
            self._place,
            looked.now_ms if found is None else found.now_ms,
            None if found is None else found.joined(self._files, last_rounds),
            tiers=looked.tiers,
            given_up=looked.given_up,
            attached=looked.attached,
            round_days=looked.round_days,
            outlooks=looked.outlooks,
            settings=looked.settings if found is None else found.settings,
            receipts=self.shelf.lines(),
            unreadable_receipts=self.shelf.unreadable,
            serial=self._view.serial + 1,
        )
        self._took = self._clock.seconds() - started


class LoopFeed:
    """What a running loop publishes; views are joined when a page asks, once a snapshot."""

    def __init__(
        self,
        live: LiveProgress,
        control: Control,
        gauges: GaugeObserver,
        files: FileSystem,
        shelf: ReceiptShelf,
        *,
        store: Watcher | None = None,
    ) -> None:
        """Take what else pages show; ``store`` reads a store's metadata while the loop runs."""
        self.live: LiveProgress | None = live
        self.control: Control | None = control
        self.gauges = gauges
        self.shelf = shelf
        self._files = files
        self._store = store
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._joined: tuple[Snapshot, ConsoleView] | None = None
        self._serial = 0

    def published(self, snapshot: Snapshot) -> None:
        """Take a snapshot; never waits."""
        self._snapshot = snapshot

    def view(self) -> ConsoleView:
        """Return what the last snapshot says."""
        with self._lock:
            snapshot = self._snapshot
            if snapshot is None:
                return ConsoleView("", 0, problem="the loop has not looked yet")
            if self._store is not None:
                found = self._store.view()
                if self._joined is None or self._joined[0] is not snapshot:
                    self.shelf.refresh()
                    self._joined = (snapshot, found)
                    self._serial += 1
                return replace(
                    found, snapshot=snapshot, serial=self._serial + found.serial,
                    receipts=self.shelf.lines(),
                )  # fmt: skip
            if self._joined is None or self._joined[0] is not snapshot:
                self._joined = (snapshot, self._join(snapshot))
            return self._joined[1]

    def _join(self, snapshot: Snapshot) -> ConsoleView:
        self._serial += 1
        look, problem = snapshot.look, None
        try:
            self.shelf.refresh()
            status = None if look is None else look.joined(self._files, self.shelf.last_rounds)
        except (CompactionError, OSError) as error:
            status, problem = None, without_secrets(error_text(error))
        return ConsoleView(
            str(snapshot.root), snapshot.looked_ms, status,
            settings=None if look is None else look.settings, snapshot=snapshot,
            receipts=self.shelf.lines(), unreadable_receipts=self.shelf.unreadable,
            problem=problem, serial=self._serial,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Observers:
    """Hands each snapshot to several."""

    receivers: tuple[GaugeObserver | LoopFeed, ...]

    def published(self, snapshot: Snapshot) -> None:
        """Hand it on."""
        for each in self.receivers:
            each.published(snapshot)
