"""``keeplast tier accept``: go on with metadata that was restored from a backup."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.packages import check_packages
from keeplast.cli.frame.parameters import Json
from keeplast.cli.tier.options import StoreAddress
from keeplast.model.document import shown_fields

if TYPE_CHECKING:
    from keeplast.store.restored import Gap, Restored


@command(first=("store", "yes"), example="keeplast tier accept --store sqlite:///meta.db")
def accept(
    place: StoreAddress,
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", help="Do it. Without, only say what the metadata lacks, and exit with 4."
        ),
    ] = False,
    as_json: Json = False,
) -> Result:  # fmt: skip
    """Let metadata count from here on that was restored from a backup, and say what it lacks.

    What was committed since the backup is lost to it: objects that it does not know are collected
    as garbage from then on, when they are a day old. Nothing is removed by this command. Restore
    newer metadata instead where there is any.
    """
    check_packages()
    from keeplast.cli.frame.exit_codes import DONE, REFUSED
    from keeplast.cli.show.output import print_result

    with place.opened() as opened:
        found = opened.restoration.accept() if yes else opened.restoration.plan()
    if not as_json:
        print_result(*_lines(found))
    code = REFUSED if found.is_refused and not found.is_accepted else DONE
    return code, _document(found)


def _document(found: Restored) -> dict[str, Any]:
    return {
        "is_older": found.is_refused, "done": found.is_accepted,
        "partitions": [
            shown_fields(gap.partition) | shown_fields(gap, "partition") for gap in found.gaps
        ],
    }  # fmt: skip


def _lines(found: Restored) -> list[str]:
    lines = [line for gap in found.gaps for line in _gap_lines(gap)]
    if not found.is_refused:
        verdict = "the metadata is the newest that its objects have seen: nothing to accept"
    elif found.is_accepted:
        verdict = "accepted: this metadata counts from here on, and any other copy is refused"
    else:
        verdict = "the metadata is older than its objects; nothing was changed: add --yes to go on"
    return [*lines, verdict]


def _gap_lines(gap: Gap) -> list[str]:
    from keeplast.model.escapes import printable
    from keeplast.model.size import format_bytes, format_counted

    name = printable(str(gap.partition))
    lines = []
    if gap.missing_segments:
        lines.append(
            f"{name}: lost: {format_counted(gap.missing_segments, 'live segment')} "
            f"({format_bytes(gap.missing_bytes)}, at offsets {gap.missing_start}.."
            f"{gap.missing_end}) without all of its objects, which were replaced since and are "
            "gone; give the partition up (keeplast tier forget) and import it anew"
        )
    if gap.unknown_segments:
        what = (
            f"{format_counted(gap.unknown_objects, 'object')} of "
            f"{format_counted(gap.unknown_segments, 'segment')} "
            f"({format_bytes(gap.unknown_bytes)}) "
        )
        after = (
            "written since, or garbage: collected when they are old enough"
            if gap.is_known
            else "of a partition that it does not know: left alone; import it to have it again"
        )
        lines.append(f"{name}: not in the metadata: {what}{after}")
    return lines
