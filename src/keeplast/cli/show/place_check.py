"""How the check of a place is shown: one table, and below it the lines to type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import RenderableType
from rich.text import Text

from keeplast.cli.show.rows import new_table
from keeplast.model.escapes import printable
from keeplast.service.place_check import CheckState, PartCheck


def check_parts(checks: Sequence[PartCheck]) -> Iterator[RenderableType]:
    """Yield the table, each remedy in a line that can be copied, and the number of problems."""
    table = new_table("=what", "=state", "found")
    for each in checks:
        about = "" if each.topic is None else f"{printable(each.topic)}: "
        table.add_row(each.name, each.state.value, Text(about + printable(each.words)))
    yield table
    for each in checks:
        if each.remedy:
            about = "" if each.topic is None else f" of {printable(each.topic)}"
            yield ""
            yield f"{each.name}{about}:"
            yield f"  {printable(each.remedy)}"
    problems = sum(each.state is CheckState.PROBLEM for each in checks)
    yield ""
    yield "nothing is in the way" if not problems else f"{problems} in the way of a clean"
