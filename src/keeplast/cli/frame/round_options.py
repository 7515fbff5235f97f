"""The options of ``clean`` and ``plan``: which rounds are asked for, over every kind of place."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cleaner.selection import Order
from keeplast.cli.frame.options import FactOptions, ScopeOptions, TargetOptions, WorthOptions
from keeplast.cli.frame.parameters import ROUND, RUN, Selection
from keeplast.cli.frame.place import PlaceOptions
from keeplast.errors import InvalidError

if TYPE_CHECKING:
    from keeplast.api.round_terms import AskedRounds
    from keeplast.config.places import FoundPlace

TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over", rich_help_panel=RUN,
        help="Take a partition of a store or a live cluster from another process, which can change "
        "nothing from then on.",
    ),
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundCountOptions:
    """How many rounds of a data directory there are, and what comes before and after them."""

    rounds: Annotated[
        int | None,
        typer.Option(
            "--rounds", metavar="N", min=1, rich_help_panel=ROUND,
            help="Rounds to do, one after the other. Default: 1.",
        ),
    ] = None  # fmt: skip
    until_done: Annotated[
        bool,
        typer.Option(
            "--until-done", rich_help_panel=ROUND,
            help="Rounds until all is clean that may be cleaned now.",
        ),
    ] = False  # fmt: skip
    roll_active: Annotated[
        bool,
        typer.Option(
            "--roll-active", rich_help_panel=ROUND,
            help="Start a new active segment first, so that the present one can be cleaned.",
        ),
    ] = False  # fmt: skip
    selection: Selection = Order.OVERDUE_FIRST
    retention: Annotated[
        bool,
        typer.Option(
            "--retention/--no-retention", rich_help_panel=ROUND,
            help="Afterwards remove the segments that retention.ms, retention.bytes (policy "
            "delete) or the log start offset let go, as a broker's cleaner does for compacted "
            "topics.",
        ),
    ] = True  # fmt: skip

    @property
    def count(self) -> int | None:
        """Return the number of rounds, None for as many as it takes; InvalidError for both."""
        if self.rounds is not None and self.until_done:
            raise InvalidError(
                f"--rounds and --until-done contradict each other; leave one out. "
                f"--rounds={self.rounds}"
            )
        return None if self.until_done else self.rounds or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanOptions:
    """What ``clean`` and ``plan`` take."""

    where: PlaceOptions
    scope: ScopeOptions
    target: TargetOptions
    facts: FactOptions
    count: RoundCountOptions
    worth: WorthOptions
    take_over: TakeOver = False

    def terms(self, found: FoundPlace) -> AskedRounds:
        """Return which rounds are asked for; InvalidError for what contradicts itself."""
        from keeplast.api.round_terms import AskedRounds, DirectoryTerms
        from keeplast.model.keyless import Keyless

        facts, count = self.facts, self.count
        return AskedRounds(
            force=self.worth.force, expired=self.worth.expired,
            keyless=Keyless(found.text("keyless") or Keyless.FAIL), takes_over=self.take_over,
            keep_sources_ms=found.milliseconds("keep-sources") or 0,
            directory=DirectoryTerms(
                now_ms=facts.now_ms, high_watermark=facts.high_watermark,
                log_start_offset=facts.log_start_offset,
                first_dirty_offset=facts.first_dirty_offset,
                uncleanable_offset=facts.uncleanable_offset, is_unsafe=facts.unsafe,
                rounds=count.count, roll_active=count.roll_active, order=count.selection,
                retention=count.retention, target=self.target.to,
                overwrites=self.target.overwrite,
            ),
        )  # fmt: skip
