"""Which rounds are asked for and who does them: values that every kind of place takes."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from msgspec import Struct, field
from msgspec.structs import replace

from keeplast.cleaner.log_order import Order
from keeplast.errors import InvalidError
from keeplast.model.hold import GroupReader
from keeplast.model.topic_config import Keyless, Shape
from keeplast.rewrite.task import Runner
from keeplast.run.events import Events, NoEvents, StopSwitch
from keeplast.run.local_runner import LocalRunner
from keeplast.survey.request import MEMORY_BYTES_DEFAULT, TASK_MEMORY_BYTES_DEFAULT


class WorkTerms(Struct, frozen=True, kw_only=True):
    """Who does the work and on how much memory, in bytes; who hears of it, and who ends it.

    ``open_runner`` opens threads of this process or tasks of Spark. ``receipt`` takes a line of
    each round. ``brokers`` read what consumer groups have committed, None where files do.
    """

    open_runner: Callable[[], AbstractContextManager[Runner]] = LocalRunner
    events: Events = field(default_factory=NoEvents)
    noted: Callable[[str], None] = lambda message: None
    switch: StopSwitch = field(default_factory=StopSwitch)
    memory_bytes: int = MEMORY_BYTES_DEFAULT
    task_memory_bytes: int = TASK_MEMORY_BYTES_DEFAULT
    key_map_bytes: int | None = None
    shape: Shape | None = None
    receipt: Path | None = None
    brokers: GroupReader | None = None

    def progressed(self, read_bytes: int) -> None:
        """Hear of bytes that were read; StoppedError where the work was ended."""
        self.events.progressed(read_bytes)
        self.switch.check()


class DirectoryTerms(Struct, frozen=True, kw_only=True):
    """What only rounds of a data directory take; fields are those of ``CleanRequest``."""

    now_ms: int | None = None
    high_watermark: int | None = None
    log_start_offset: int | None = None
    first_dirty_offset: int | None = None
    uncleanable_offset: int | None = None
    is_unsafe: bool = False
    rounds: int | None = 1
    roll_active: bool = False
    order: Order = Order.OVERDUE_FIRST
    retention: bool = True
    target: Path | None = None
    overwrites: bool = False


PLAIN = DirectoryTerms()


class AskedRounds(Struct, frozen=True, kw_only=True):
    """Which rounds are asked for.

    ``force`` ignores ``min.cleanable.dirty.ratio`` and nothing else; ``expired`` also cleans where
    only expired tombstones and markers are left to go. ``keyless`` is for a live cluster's records
    without a key. ``takes_over`` takes a partition from another process. ``keep_sources_ms`` keeps
    a live cluster's replaced segments for so long at least. ``directory`` is refused elsewhere.
    """

    force: bool = False
    expired: bool = False
    keyless: Keyless = Keyless.FAIL
    takes_over: bool = False
    keep_sources_ms: int = 0
    directory: DirectoryTerms = PLAIN

    def require_no_rounds(self, where: str) -> None:
        """Raise InvalidError for what only rounds take."""
        rounds = replace(
            self.directory, now_ms=None, high_watermark=None, log_start_offset=None, is_unsafe=False
        )
        if self.force or self.expired or rounds != PLAIN:
            raise InvalidError(
                "only what retention and the log start let go is removed; leave the options of "
                f"rounds out. place={where}",
                code="K103",
            )

    def require_no_directory(self, where: str) -> None:
        """Raise InvalidError for what only a data directory takes."""
        if self.directory != PLAIN:
            given = [
                name
                for name in DirectoryTerms.__struct_fields__
                if getattr(self.directory, name) != getattr(PLAIN, name)
            ]
            raise InvalidError(
                "only rounds of a data directory take this; leave it out. "
                f"place={where} given={', '.join(given)}",
                code="K103",
            )
