"""What every table is made of: tables of batches, of records, and of a plan or a run.

A number that is an estimate begins with ``~``, one that the sample did not give is ``?``. Reasons
are words, not codes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from keeplast.cleaner.reasons import BoundNote
from keeplast.clock import time_text
from keeplast.inspect.log_rows import Row, decoded_text
from keeplast.model.text import format_bytes, format_count, printable
from keeplast.rewrite.stats import Reasons
from keeplast.survey.report import CleanReport, PartitionReport, RoundReport
from keeplast.survey.wording import sentences


def document_row(row: Row) -> Row:
    """Return the part of a row that belongs into the document."""
    return {name: value for name, value in row.items() if name != "shown"}


def batches_table(rows: Iterable[Row]) -> Table:
    """Return batches, one a line."""
    return new_table(
        ">position",
        ">offsets",
        ">records",
        ">bytes",
        "codec",
        "=greatest time",
        "producer",
        "attributes",
        rows=(
            (
                str(row["position"]),
                f"{row['base_offset']}..{row['last_offset']}",
                str(row["count"]),
                str(row["size_bytes"]),
                row["codec"] if row["magic"] == 2 else f"{row['codec']} (magic {row['magic']})",
                time_text(row["max_timestamp"]),
                _producer(row),
                _attributes(row),
            )
            for row in rows
        ),
    )


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


def new_table(*headings: str, rows: Iterable[Iterable[RenderableType | None]] = ()) -> Table:
    """Return a table of ``rows`` whose texts fold where the screen is narrow.

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
    for row in rows:
        table.add_row(*row)
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
    """Return what the batch's header says apart from the columns, and what is wrong with it."""
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


_REASONS = (
    ("superseded", "superseded by another record"),
    ("tombstone", "tombstone past its delete horizon"),
    ("aborted", "of an aborted transaction"),
    ("keyless", "without a key"),
    ("marker", "transaction marker past its delete horizon"),
)


def summary_table(report: CleanReport) -> Table:
    """Return a row per partition: bytes, records and tombstones before and after.

    Where filters let a round leave something out, the bytes are those of all of the log. Records
    were not counted there, so it is shown how many went.
    """
    table = new_table(
        "partition", ">bytes", ">records", ">tombstones", ">ratio before", ">clean to"
    )
    for partition, last in _last_rounds(report):
        cells = _change_cells(partition.rounds)
        if cells is None:
            cells = ["failed" if last.error is not None else "", "", ""]
        table.add_row(
            Text(_name(partition)),
            *cells,
            "" if last.ratio is None else f"{last.ratio:.3f}",
            "" if last.end_offset is None else str(last.end_offset),
        )
    return table


def bounds_table(report: CleanReport) -> Table:
    """Return a row per partition: what would be read, from where to where; all of it exact."""
    return new_table(
            "partition", ">log", ">first dirty", ">cleans to", ">clean", ">cleanable", ">ratio",
            ">groups", "shape", rows=(
            (
                Text(_name(partition)),
                f"{_offset(last.log_start)}..{_offset(last.log_end)}",
                _offset(last.first_dirty),
                _offset(last.bound),
                "" if last.clean_bytes is None else format_bytes(last.clean_bytes),
                "" if last.cleanable_bytes is None else format_bytes(last.cleanable_bytes),
                "" if last.ratio is None else f"{last.ratio:.3f}",
                "" if last.groups is None else str(len(last.groups)),
                _shape(last),
            )
            for partition, last in _last_rounds(report)
        ))  # fmt: skip


def _last_rounds(report: CleanReport) -> Iterator[tuple[PartitionReport, RoundReport]]:
    """Yield each partition and its last round, an empty one where it had none."""
    for each in report.partitions:
        yield each, each.rounds[-1] if each.rounds else RoundReport()


def estimates_tables(report: CleanReport) -> tuple[Table, ...]:
    """Return what a plan expects of each partition and what that takes; nothing without estimates.

    The disk space that is needed is no estimate.
    """
    changes = new_table("partition", ">bytes", ">records", ">tombstones", ">superseded")
    needs = new_table("partition", ">dirty keys", ">key map", ">disk", ">seconds")
    for partition, last in _last_rounds(report):
        e = last.estimate
        if e is None:
            continue
        changes.add_row(
            Text(_name(partition)),
            _estimated_change(format_bytes, e.bytes_read, e.bytes_written),
            _estimated_change(format_count, e.messages_read, e.messages_written),
            _estimated_change(format_count, e.tombstones_read, e.tombstones_written),
            _about(format_count, e.superseded_records),
        )
        needs.add_row(
            Text(_name(partition)),
            _about(format_count, e.distinct_keys),
            _about(format_bytes, e.key_map_bytes),
            "" if last.disk_bytes is None else format_bytes(last.disk_bytes),
            f"~{e.seconds:.1f}",
        )
    return (changes, needs) if changes.row_count else ()


def reasons_table(report: CleanReport) -> Table | None:
    """Return what went or would go by reason, or None when no round says it."""
    table = new_table("partition", "records that go", ">records", ">bytes, uncompressed")
    for partition in report.partitions:
        for name, words in _REASONS:
            reasons = [each.reasons for each in partition.rounds if each.reasons is not None]
            records = sum(_count(each, f"{name}_records") for each in reasons)
            size = sum(_count(each, f"{name}_bytes") for each in reasons)
            if records:
                table.add_row(
                    Text(_name(partition)),
                    words,
                    format_count(records),
                    format_bytes(size),
                )
    return table if table.row_count else None


def note_lines(report: CleanReport) -> list[str]:
    """Return a line for each thing to know of a partition: why it goes so far and no further."""
    return [
        f"{_name(partition)}: {printable(note)}"
        for partition in report.partitions
        for note in _notes(partition)
    ]


def filter_lines(report: CleanReport) -> list[str]:
    """Return a line a partition: what filters let its round leave out, and what they took."""
    lines = []
    for partition in report.partitions:
        stats = partition.rounds[-1].filters
        if stats is None or not stats.clean_segments:
            continue
        line = (
            f"{_name(partition)}: filters left out "
            f"{format_count(stats.skipped_segments)} of {format_count(stats.clean_segments)} clean "
            f"segments ({format_bytes(stats.skipped_bytes)} of {format_bytes(stats.clean_bytes)}), "
            f"reading {format_bytes(stats.bytes_read)}"
        )
        if stats.share_of_segments is not None:
            line += f"; they are {stats.share_of_segments:.2%} of their segments"
        if stats.damaged:
            line += f"; damaged, or not of these bytes, and read instead: {stats.damaged}"
        lines.append(line)
    return lines


def round_sentence(report: RoundReport) -> str:
    """Return one round in words."""
    if report.error is not None:
        return "failed; the error follows at the end"
    if report.skipped:
        return f"skipped: {report.reason or 'nothing to do'}"
    if report.stats is None:
        return f"bound {_offset(report.bound)}"
    stats = report.stats
    seconds = f" in {stats.total_seconds:.1f} s" if stats.total_seconds else ""
    return (
        f"{format_bytes(stats.bytes_read)} -> {format_bytes(stats.bytes_written)}, "
        f"{format_count(stats.messages_read)} -> {format_count(stats.messages_written)} records, "
        f"clean to offset {_offset(report.end_offset)}{seconds}"
    )


def _change_cells(rounds: Sequence[RoundReport]) -> list[str] | None:
    """Return bytes, records and tombstones before the first and after the last of the rounds."""
    done = [(each, each.stats, each.log_bytes) for each in rounds]
    known = [(each, stats, size) for each, stats, size in done if stats and size]
    if not known:
        return None
    (first, total, (before, _)), (last, last_stats, (_, after)) = known[0], known[-1]
    size = _change(format_bytes, before, after)
    # Aborted records and markers are among them.
    gone = sum(_count(first.reasons, f"{name}_records") for name, _ in _REASONS)
    tombstones_gone = total.tombstones_read - total.tombstones_written
    if last.has_skipped:
        return [size, _gone(gone), _gone(tombstones_gone)]
    left, records, tombstones = last_stats, total.messages_read, total.tombstones_read
    if last.last_chunk is not None:
        # Each later chunk read what was written before.
        left = last.last_chunk
        records, tombstones = (
            left.messages_written + gone,
            left.tombstones_written + tombstones_gone,
        )
    return [
        size,
        _change(format_count, records, left.messages_written),
        _change(format_count, tombstones, left.tombstones_written),
    ]


def _gone(count: int) -> str:
    return f"-{format_count(count)}"


def _change(words: Callable[[int], str], before: int, after: int) -> str:
    return f"{words(before)} -> {words(after)}"


def _estimated_change(words: Callable[[int], str], before: int, after: int | None) -> str:
    return f"{_about(words, before)} -> {_about(words, after)}"


def _about(words: Callable[[int], str], count: int | None) -> str:
    return "?" if count is None else f"~{words(count)}"


def _name(partition: PartitionReport) -> str:
    return printable(f"{partition.topic}-{partition.partition}")


def _shape(last: RoundReport) -> str:
    """Return how the work is cut, and why."""
    if last.shape is None:
        return ""
    buckets = f", {last.buckets} buckets" if last.buckets else ""
    return f"{last.shape}{buckets}" + (f": {last.shape_reason}" if last.shape_reason else "")


def _offset(offset: int | None) -> str:
    return "?" if offset is None else str(offset)


def _notes(partition: PartitionReport) -> list[str]:
    if not partition.rounds:
        return []
    last = partition.rounds[-1]
    if last.skipped:
        skipped = f"skipped: {last.reason or 'nothing to do'}"
        # Where there is nothing to clean, the bound's note says the same again.
        has_nothing = not last.cleanable_bytes
        return [
            skipped,
            *sentences(
                each for each in last.remarks if not (has_nothing and isinstance(each, BoundNote))
            ),
        ]
    rounds = len(partition.rounds)
    words = [f"{rounds} rounds"] if rounds > 1 else []
    return [*words, *last.notes]


def _count(reasons: Reasons | None, name: str) -> int:
    value = getattr(reasons, name, 0)
    return value if isinstance(value, int) else 0
