"""What pages are made from: one value, made now and then, and read by any number of browsers.

Of a loop it is made from the loop's last snapshot. Where nothing runs, it is made from a look that
is repeated only while a browser watches, and takes two percent of a core at most. Each request gets
the last one at once.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msgspec import Struct, field
from msgspec.structs import force_setattr, replace

from keeplast.clock import Clock
from keeplast.config.precedence import Settings
from keeplast.errors import CompactionError, error_text
from keeplast.log.files import FileSystem
from keeplast.model.partition import TopicPartition
from keeplast.model.text import without_secrets
from keeplast.service.gauges import GaugeObserver
from keeplast.service.history_file import PlaceHistory
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

T = TypeVar("T")
PAUSE_SECONDS_MIN = 5.0
IDLE_SHARE = 50
"""A look is followed by a pause of so many times what it took."""


class PlaceFacts(Struct, frozen=True, kw_only=True):
    """What a look found of a store or a live cluster, and the settings that counted."""

    tiers: tuple[TierStatus, ...] = ()
    given_up: tuple[TopicPartition, ...] = ()
    attached: ClusterStatus | None = None
    round_days: tuple[RoundDay, ...] = ()
    outlooks: Mapping[TopicPartition, StoreOutlook] = field(default_factory=dict)
    settings: Settings | None = None


class ConsoleView(PlaceFacts, frozen=True):
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
    _kept: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Begin with nothing made, in a copy too."""
        force_setattr(self, "_kept", {})

    def kept(self, name: str, make: Callable[[], T]) -> T:
        """Return what pages have made of this view under a name; the first who asks makes it."""
        if name not in self._kept:
            self._kept[name] = make()
        found: T = self._kept[name]
        return found


class ViewSource(Protocol):
    """Where views come from, and what else pages show."""

    @property
    def shelf(self) -> ReceiptShelf:
        """Return the receipts."""

    @property
    def history(self) -> PlaceHistory:
        """Return what the place was like."""

    @property
    def live(self) -> LiveProgress | None:
        """Return how far the loop is, None where nothing runs."""

    @property
    def control(self) -> Control | None:
        """Return what the loop may be asked for, None where nothing runs."""

    @property
    def gauges(self) -> GaugeObserver:
        """Return what metrics are made from."""

    def view(self) -> ConsoleView:
        """Return the newest view; UnavailableError before the first. May join what is new."""


class Looked(PlaceFacts, frozen=True):
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
        second: bool = False,
    ) -> None:
        """Take how to look; ``look`` raises CompactionError or OSError when it cannot.

        ``endures`` is for a console next to a loop, which goes on whatever cannot be looked at. A
        first look that fails is then shown on the pages, as a later one is. One that is ``second``
        makes none before it is asked: the loop's own comes first.
        """
        self._is_second = second
        self._endures = endures
        self._place = place
        self._look = look
        self._clock = clock
        self._files = files
        self.shelf = shelf
        self.history = PlaceHistory(files, shelf, clock)
        self.gauges = GaugeObserver()
        self._asked = threading.Event()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="keeplast-look", daemon=True)
        self._view = ConsoleView(place, 0)
        self._took = 0.0

    def __enter__(self) -> Watcher:
        """Look once, with each error as an exception unless it endures; go on in a thread."""
        try:
            if not self._is_second:
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
    """What a running loop publishes, and what ``watcher`` sees next to it; the newer look is shown.

    Views are joined when a page asks, once a snapshot and once a look. The loop looks at a data
    directory before each turn, so that ``watcher`` is asked only while a turn goes on for longer.
    """

    def __init__(
        self,
        live: LiveProgress,
        control: Control,
        gauges: GaugeObserver,
        files: FileSystem,
        clock: Clock,
        watcher: Watcher,
        history: PlaceHistory,
    ) -> None:
        """Take what else pages show."""
        self.history = history
        self.live: LiveProgress | None = live
        self.control: Control | None = control
        self.gauges = gauges
        self.shelf = watcher.shelf
        self._progress = live
        self._files = files
        self._clock = clock
        self._watcher = watcher
        self._lock = threading.Lock()
        self._snapshot: Snapshot | None = None
        self._own: tuple[Snapshot, ConsoleView] | None = None
        self._shown: tuple[Snapshot, ConsoleView, ConsoleView] | None = None

    def published(self, snapshot: Snapshot) -> None:
        """Take a snapshot; never waits."""
        self._snapshot = snapshot

    def view(self) -> ConsoleView:
        """Return what the last snapshot and the last look say."""
        with self._lock:
            snapshot, shown = self._snapshot, self._shown
            if snapshot is None:
                return ConsoleView("", 0, problem="the loop has not looked yet")
            found = self._watcher.view() if snapshot.look is None else self._newest(snapshot)
            if shown is None or shown[0] is not snapshot or shown[1] is not found:
                self.shelf.refresh()
                made = replace(
                    self._without_work(found), snapshot=snapshot, receipts=self.shelf.lines(),
                    serial=1 if shown is None else shown[2].serial + 1,
                )  # fmt: skip
                self._shown = shown = (snapshot, found, made)
                self._progress.looked(found.now_ms)
            return shown[2]

    def _newest(self, snapshot: Snapshot) -> ConsoleView:
        """Return the loop's own look at a directory, or one that was made since."""
        if self._own is None or self._own[0] is not snapshot:
            self._own = (snapshot, self._join(snapshot))
        own = self._own[1]
        if self._clock.now_ms() - own.now_ms < PAUSE_SECONDS_MIN * 1000:
            return own
        found = self._watcher.view()
        return own if found.status is None or found.now_ms <= own.now_ms else found

    def _without_work(self, found: ConsoleView) -> ConsoleView:
        """Return a look without what it saw in the midst of a round: a swap is no fault then."""
        if found.status is None or self._own is None or self._own[1].status is None:
            return found
        before = {each.partition: each for each in self._own[1].status.partitions}
        running = {each.partition for each in self._progress.progress.running}
        partitions = tuple(
            before.get(each.partition, each) if each.error and each.partition in running else each
            for each in found.status.partitions
        )
        return replace(found, status=dataclasses.replace(found.status, partitions=partitions))

    def _join(self, snapshot: Snapshot) -> ConsoleView:
        look, problem = snapshot.look, None
        try:
            self.shelf.refresh()
            status = None if look is None else look.joined(self._files, self.shelf.last_rounds)
        except (CompactionError, OSError) as error:
            status, problem = None, without_secrets(error_text(error))
        return ConsoleView(
            str(snapshot.root), snapshot.looked_ms, status,
            settings=None if look is None else look.settings,
            unreadable_receipts=self.shelf.unreadable, problem=problem,
        )  # fmt: skip
