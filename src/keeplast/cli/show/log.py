"""A partition directory or one of its segments for ``inspect``: summary, sample, findings.

A file is *active* when no segment with a greater base offset lies next to it. Only such a file may
end in a batch that was never finished.
"""

from __future__ import annotations

import re
from pathlib import Path

from msgspec import Struct
from rich.console import RenderableType
from rich.text import Text

from keeplast.cli.show.file import view_file
from keeplast.cli.show.picture import PicturedSegment, draw_log
from keeplast.cli.show.progress import ProgressEvents
from keeplast.cli.show.tables import (
    batches_table,
    document_row,
    new_table,
    records_table,
)
from keeplast.clock import time_text
from keeplast.errors import CompactionError, CorruptError, InvalidError
from keeplast.format.filename import (
    CLEANER_CHECKPOINT,
    INCOMPLETE,
    LEADER_EPOCH_CHECKPOINT,
    LOG,
    LOG_START_CHECKPOINT,
    PARTITION_METADATA,
    SNAPSHOT,
    is_unknown_kind,
    parse_partition_directory,
    parse_segment_file,
    parse_undo_file,
)
from keeplast.format.leader_epoch import LeaderEpoch
from keeplast.inspect.log_scan import (
    AbortedScan,
    EpochCheck,
    RowSample,
    ScanFindings,
    SegmentView,
    scan_segment,
)
from keeplast.log.checkpoints import read_checkpoint
from keeplast.log.files import FileSystem
from keeplast.log.partition_log import settled_names
from keeplast.log.root_files import RECEIPTS_NAME
from keeplast.log.truncation import read_leader_epochs
from keeplast.model.partition import TopicPartition
from keeplast.model.text import format_bytes, format_count, printable

METADATA_SNAPSHOT = re.compile(r"([0-9]{20})-[0-9]{10}\.checkpoint")
INTERNAL_PREFIX = "__"
KNOWN_NAMES = frozenset({LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA, "quorum-state"})


class LogPage(Struct):
    """What was seen of a log."""

    path: Path
    kind: str
    partition: TopicPartition | None
    segments: list[SegmentView]
    sample: RowSample
    findings: ScanFindings
    log_start: int | None = None
    first_dirty: int | None = None

    def as_document(self) -> dict[str, object]:
        """Return the document."""
        partition = self.partition
        return {
            "path": self.path,
            "kind": self.kind,
            "topic": None if partition is None else partition.topic,
            "partition": None if partition is None else partition.partition,
            "log_start": self.log_start,
            "log_end": self.segments[-1].end_offset if self.segments else None,
            "first_dirty": self.first_dirty,
            "segments": self.segments,
            "records" if self.sample.wants_records else "batches": [
                document_row(row) for row in self.sample.rows
            ],
            "truncated": self.sample.is_cut,
            "problems": self.findings.items,
            "problems_left_out": self.findings.left_out,
        }

    def render(self, width: int) -> list[RenderableType]:
        """Return what a person is shown on ``width`` columns."""
        parts: list[RenderableType] = [Text(printable(self._title())), ""]
        if self.kind == "partition" and self.segments:
            parts += [Text(self._picture(width)), ""]
        parts += [self._segments_table(), ""]
        if self.sample.rows:
            wants_records = self.sample.wants_records
            table = records_table if wants_records else batches_table
            parts.append(table(self.sample.rows))
            if self.sample.is_cut:
                parts.append("… more; --from-offset and --limit choose others")
            parts.append("")
        elif self.segments and self.sample.from_offset >= self.segments[-1].end_offset:
            parts += [
                f"nothing to show from offset {self.sample.from_offset} on: the log ends at "
                f"{self.segments[-1].end_offset}, the last offset is one less; give a lower "
                "--from-offset",
                "",
            ]
        return parts + self._problems()

    def _title(self) -> str:
        name = str(self.path) if self.partition is None else f"{self.partition} ({self.path})"
        total = sum(segment.size_bytes for segment in self.segments)
        records = sum(segment.records for segment in self.segments)
        count = len(self.segments)
        return (
            f"{name}: {count} segment{'' if count == 1 else 's'}, {format_bytes(total)}, "
            f"{format_count(records)} records"
        )

    def _picture(self, width: int) -> str:
        return draw_log(
            [
                PicturedSegment(each.base_offset, each.end_offset, each.size_bytes)
                for each in self.segments
            ],
            log_start=self.log_start,
            first_dirty=self.first_dirty,
            screen=width,
        )

    def _segments_table(self) -> RenderableType:
        table = new_table(
            ">segment",
            ">end offset",
            ">bytes",
            ">batches",
            ">records",
            "=greatest time",
            "codecs",
            "",
        )
        for segment in self.segments:
            legacy = [f"magic {magic}" for magic in sorted(segment.magics) if magic != 2]
            table.add_row(
                str(segment.base_offset),
                str(segment.end_offset),
                format_count(segment.size_bytes),
                format_count(segment.batches),
                format_count(segment.records),
                time_text(segment.max_timestamp),
                " ".join(sorted(segment.codecs)),
                " ".join((["active"] if segment.is_active else []) + legacy),
            )
        return table

    def _problems(self) -> list[RenderableType]:
        if not self.findings.items:
            return ["no problems found"]
        lines: list[RenderableType] = []
        for finding in self.findings.items:
            details = " ".join(
                f"{name}={value}"
                for name, value in (
                    ("path", finding.path),
                    ("position", finding.position),
                    ("expected", finding.expected),
                    ("found", finding.found),
                )
                if value is not None
            )
            lines.append(Text(printable(f"{finding.severity}: {finding.problem}. {details}")))
        if self.findings.left_out:
            lines.append(f"and {format_count(self.findings.left_out)} more problems")
        return lines


def view_partition(path: Path, files: FileSystem, sample: RowSample) -> LogPage:
    """Read all segments in the partition directory ``path``."""
    parsed = parse_partition_directory(path.name)
    if parsed is None:
        names = files.listdir(path)
        inside = [name for name in names if parse_partition_directory(name)]
        # Somebody's own topic rather than one of the broker's.
        inside.sort(key=lambda name: (name.startswith(INTERNAL_PREFIX), name))
        remedy = f"choose one in it, such as {inside[0]}" if inside else "give a file of a log"
        remedy += f", or its receipts, {RECEIPTS_NAME}" if RECEIPTS_NAME in names else ""
        raise InvalidError(f"not a partition directory; {remedy}. path={path}", code="K116")
    view = LogPage(path, "partition", parsed.partition, [], sample, ScanFindings())
    _read_checkpoints(view, files)
    bases = _list_directory(view, files)
    if not bases:
        raise InvalidError(
            f"no segment in the directory; nothing to inspect. path={path}", code="K116"
        )
    view.segments = [
        _segment_view(path / f"{base:020d}{LOG}", base, files, is_active=base == bases[-1])
        for base in bases
    ]
    _scan(view, files)
    if view.log_start is None:
        view.log_start = view.segments[0].base_offset
    return view


def view_segment(path: Path, files: FileSystem, sample: RowSample) -> LogPage:
    """Read the one segment or metadata snapshot at ``path``."""
    snapshot = METADATA_SNAPSHOT.fullmatch(path.name)
    parsed = parse_segment_file(path.name)
    directory = parse_partition_directory(path.parent.name)
    partition = None if directory is None else directory.partition
    view = LogPage(path, "segment", partition, [], sample, ScanFindings())
    if snapshot is not None:
        base, is_active = 0, False
    else:
        base = parsed.base_offset if parsed is not None else 0
        later = [
            other.base_offset
            for name in files.listdir(path.parent)
            if (other := parse_segment_file(name)) and other.kind == LOG and not other.stage
        ]
        is_active = base >= max(later, default=base) and parsed is not None and not parsed.stage
    view.segments = [_segment_view(path, base, files, is_active=is_active)]
    _scan(view, files)
    return view


def _segment_view(path: Path, base: int, files: FileSystem, *, is_active: bool) -> SegmentView:
    status = files.stat(path)
    return SegmentView(
        base, path, status.size_bytes, status.mtime_ns // 1_000_000, is_active, end_offset=base
    )


def _scan(view: LogPage, files: FileSystem) -> None:
    view.sample.topic = None if view.partition is None else view.partition.topic
    aborted, epochs = AbortedScan(), EpochCheck(_leader_epochs(view, files))
    with ProgressEvents("reading") as events:
        events.planned(sum(segment.size_bytes for segment in view.segments))
        for segment in view.segments:
            scan_segment(
                segment, files, view.findings, view.sample, aborted, epochs, events.progressed
            )


def _leader_epochs(view: LogPage, files: FileSystem) -> tuple[LeaderEpoch, ...]:
    """Return the entries next to the segments; one that cannot be read is a finding of its own."""
    try:
        return read_leader_epochs(files, view.segments[0].path.parent)
    except CorruptError:
        return ()


def _read_checkpoints(view: LogPage, files: FileSystem) -> None:
    assert view.partition is not None
    root = view.path.parent
    found: list[int | None] = []
    for name in (CLEANER_CHECKPOINT, LOG_START_CHECKPOINT):
        try:
            found.append(read_checkpoint(files, root, name).get(view.partition))
        except CorruptError as error:
            view.findings.add_error("corrupt", root / name, error)
            found.append(None)
    view.first_dirty, view.log_start = found


def _list_directory(view: LogPage, files: FileSystem) -> list[int]:
    """Return the base offsets of the segments; what else is there is checked or noted."""
    bases: list[int] = []
    beside: list[tuple[Path, int]] = []
    for name in settled_names(view.path, files):
        path = view.path / name
        parsed = parse_segment_file(name)
        if parsed is not None and parsed.stage:
            view.findings.add("note", path, "staged or replaced file of an earlier run")
        elif parsed is not None and parsed.kind == LOG:
            bases.append(parsed.base_offset)
        elif parsed is not None and parsed.kind == SNAPSHOT:
            _check_file(view, path, files)
        elif parsed is not None:
            beside.append((path, parsed.base_offset))
        elif name in (LEADER_EPOCH_CHECKPOINT, PARTITION_METADATA):
            _check_file(view, path, files)
        elif parse_undo_file(name) is not None:
            view.findings.add("note", path, "kept by a round, for keeplast undo")
        elif name not in KNOWN_NAMES and METADATA_SNAPSHOT.fullmatch(name) is None:
            problem = "unknown name; brokers ignore it"
            if name == INCOMPLETE:
                problem = (
                    "an unfinished clean --to: what is here is not the whole log; run it again"
                )
            if is_unknown_kind(name):
                problem = "segment file of an unknown kind, a newer Kafka's: clean refuses it"
            view.findings.add("note", path, problem)
    for path, base in beside:
        if base not in bases:
            view.findings.add("note", path, "index without a segment")
    return sorted(bases)


def _check_file(view: LogPage, path: Path, files: FileSystem) -> None:
    try:
        view_file(path, files)
    except CompactionError as error:
        view.findings.add_error("corrupt", path, error)
