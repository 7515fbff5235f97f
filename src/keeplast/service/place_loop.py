"""What a place gives to a loop and to a console: values that every kind of place makes.

The rule: what is wrong with an argument or a place is found before an :class:`OpenLoop` is there,
and nothing of the place is changed before its :attr:`OpenLoop.start`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct, field

from keeplast.cleaner.log_order import Order
from keeplast.clock import Clock, SystemClock
from keeplast.errors import InvalidError
from keeplast.log.files import FileSystem
from keeplast.model.hold import GroupReader
from keeplast.model.topic_config import HostRole, Keyless
from keeplast.rewrite.task import Runner
from keeplast.service.receipt_shelf import ReceiptShelf

if TYPE_CHECKING:
    from keeplast.run.events import Events
    from keeplast.service.console.searches import HeaderScanner, KeyFinder
    from keeplast.service.console.view import Watcher
    from keeplast.service.daemon import Work
    from keeplast.service.live import TierNarrator


class ViewTerms(Struct, frozen=True, kw_only=True):
    """How a place is looked at for a console.

    ``receipt`` is the file that a loop appends its receipts to, None where the place has its own.
    ``brokers`` read what consumer groups have committed, None where files do. What looks next to a
    loop ``endures``: a first look that fails is shown on the pages.
    """

    clock: Clock = field(default_factory=SystemClock)
    receipt: Path | None = None
    brokers: GroupReader | None = None
    endures: bool = False

    def shelf(self, files: FileSystem, own: Path | None = None) -> ReceiptShelf:
        """Return the receipts that are shown; ``own`` is the place's file where none was named.

        InvalidError for what cannot be a file of receipts.
        """
        path = self.receipt
        if path is not None and (path.is_dir() or not path.resolve().parent.is_dir()):
            raise InvalidError(
                "no file of that name can be a receipt; name the one that keeplast run appends "
                f"to. --receipt={path}",
                code="K159",
            )
        return ReceiptShelf(files, own if path is None else path)


class PlaceView(Struct, frozen=True, kw_only=True):
    """What a console shows of a place: its looks, and who reads its logs when a page asks.

    ``watcher`` has not looked yet. ``find`` and ``scan`` are None where no segment can be read.
    """

    watcher: Watcher
    find: KeyFinder | None
    scan: HeaderScanner | None


class LoopTerms(Struct, frozen=True, kw_only=True):
    """How a place is looked after.

    ``retries`` forgets what is set aside. ``takes_over`` takes each partition once from another
    process. ``keyless`` and ``keep_sources_ms`` are those of rounds of a live cluster. ``host_dir``
    makes this process a host of a store's partitions, with ``role`` and ``lease_ms``, None for the
    usual. A console watches a loop that ``is_watched``. ``unanswered`` says what asked brokers do
    not answer.
    """

    order: Order = Order.OVERDUE_FIRST
    retries: bool = False
    takes_over: bool = False
    keyless: Keyless = Keyless.FAIL
    keep_sources_ms: int = 0
    host_dir: Path | None = None
    role: HostRole | None = None
    lease_ms: int | None = None
    is_watched: bool = False
    unanswered: Callable[[], Sequence[str]] = tuple

    @property
    def host_terms(self) -> list[str]:
        """Return which options that are about a host were given."""
        given = {"--host-dir": self.host_dir, "--role": self.role, "--lease-ms": self.lease_ms}
        return [name for name, value in given.items() if value is not None]


class OpenLoop(Struct, frozen=True, kw_only=True):
    """A place that can be looked after, and is open meanwhile.

    ``name`` is how lines and metrics name it, ``assumed`` the defaults that it rests on because no
    source gives them. ``receipt`` is the file that its rounds append to, None for none. ``view`` is
    what a console next to it shows. ``start`` gives the work to a runner, a narrator and a receiver
    of events. A second signal ends work that ``ends_at_second`` as a crash would.
    """

    name: str
    receipt: Path | None
    start: Callable[[Runner, TierNarrator, Events], Work]
    view: Callable[[ViewTerms], PlaceView]
    assumed: Mapping[str, str] = field(default_factory=dict)
    ends_at_second: bool = False
