"""Points of a log that lie behind what is here of it, as behind what a remote tier has.

The rule: what is elsewhere is never taken for what is not there. An offset behind what is here is
no mistake, and a time that nothing here is later than may lie elsewhere: both are refused.
"""

from __future__ import annotations

from keeplast.errors import RefusedError
from keeplast.read.log_view import LogView


def require_here(view: LogView, behind: str, what: str, end_offset: int) -> None:
    """Raise RefusedError for an end, exclusive, beyond what is here of a log that goes on.

    ``behind`` says what is elsewhere, empty for nothing; ``what`` names the end for people.
    """
    if behind and end_offset > view.log_end:
        raise RefusedError(
            f"the state as of this offset cannot be told from here: {behind}. Give an offset "
            f"up to where it ends. {what}={end_offset} partition={view.partition} "
            f"log_end={view.log_end}"
        )


def require_later(view: LogView, behind: str, what: str, time_ms: int, found: int | None) -> None:
    """Raise RefusedError for a time of which no later record was ``found`` where a log goes on."""
    if behind and found is None:
        raise RefusedError(
            "nothing here is later than this time, and what is may be elsewhere: "
            f"{behind}. Give an earlier time, or an offset. {what}={time_ms} "
            f"partition={view.partition} log_end={view.log_end}"
        )
