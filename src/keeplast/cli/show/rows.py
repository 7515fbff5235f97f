"""Tables of batches and records, and what every table is made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rich.table import Table
from rich.text import Text

from keeplast.clock import time_text
from keeplast.inspect.internal_records import decoded_text
from keeplast.inspect.log_rows import Row
from keeplast.model.escapes import printable


def document_row(row: Row) -> Row:
    """Return the part of a row that belongs into the document."""
    return {name: value for name, value in row.items() if name != "shown"}


def batches_table(rows: Iterable[Row]) -> Table:
    """Return batches, one a line."""
    table = new_table(
        ">position",
        ">offsets",
        ">records",
        ">bytes",
        "codec",
        "=greatest time",
        "producer",
        "attributes",
    )
    for row in rows:
        table.add_row(
            str(row["position"]),
            f"{row['base_offset']}..{row['last_offset']}",
            str(row["count"]),
            str(row["size_bytes"]),
            row["codec"] if row["magic"] == 2 else f"{row['codec']} (magic {row['magic']})",
            time_text(row["max_timestamp"]),
            _producer(row),
            _attributes(row),
        )
    return table


def records_table(rows: Iterable[Row]) -> Table:
    """Return records, one a line; what strangers wrote is escaped."""
    table = new_table(">offset", "=time", "key", "value", "headers")
    for row in rows:
        shown = row["shown"]
        if row["control"] is not None:
            cells = [f"{row['control']} of producer {row['producer_id']}", "", ""]
        elif row["decoded"] is not None:
            cells = [*map(printable, decoded_text(row["decoded"])), shown["headers"]]
        else:
            cells = [shown["key"], shown["value"], shown["headers"]]
        table.add_row(
            str(row["offset"]), time_text(row["timestamp"]), *(Text(cell) for cell in cells)
        )
    return table


def new_table(*headings: str) -> Table:
    """Return an empty table whose texts fold where the screen is narrow.

    A heading that begins with ``>`` is over numbers, one that begins with ``=`` over something else
    that stays in one line.
    """
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in headings:
        is_number = heading.startswith(">")
        table.add_column(
            heading.lstrip(">="), justify="right" if is_number else "left",
            no_wrap=heading.startswith((">", "=")), overflow="fold",
        )  # fmt: skip
    return table


def cells(values: Sequence[object]) -> list[Text]:
    """Return values as cells that are taken literally."""
    return [Text(printable(str(value))) for value in values]


def _producer(row: Row) -> str:
    if row["producer_id"] == -1:
        return ""
    sequences = "" if row["base_sequence"] == -1 else f" #{row['base_sequence']}"
    return f"{row['producer_id']}/{row['producer_epoch']}{sequences}"


def _attributes(row: Row) -> str:
    """Return what the batch's header says beside the columns, and what is wrong with it."""
    attributes = [
        ("control", row["is_control"]),
        ("transactional", row["is_transactional"] and not row["is_control"]),
        ("append time", row["timestamp_type"] == "log_append_time"),
        (
            "delete horizon " + time_text(row["delete_horizon_ms"] or 0),
            row["delete_horizon_ms"] is not None,
        ),
        ("empty", row["count"] == 0),
        ("bad crc", not row["is_valid"]),
    ]
    return ", ".join(words for words, is_set in attributes if is_set)
