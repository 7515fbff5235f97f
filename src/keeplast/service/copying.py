"""What goes from a data directory into a store, and from a store into directories.

A data directory is only read. The rule of a copy: without ``takes_new`` a partition that the store
does not have is left alone, and named. With it each partition is taken as a whole, the active
segment too, and its settings are kept with it. A fault of one partition is in the answer and keeps
no other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct, field

from keeplast.config.layers import PartitionChoice, SettingSources
from keeplast.config.selection import select_directory
from keeplast.config.sources import read_settings
from keeplast.errors import CompactionError, InvalidError, RefusedError, error_text
from keeplast.log.data_directory import open_data_directory
from keeplast.log.files import LocalFiles
from keeplast.log.partition_log import find_tail, list_partition
from keeplast.log.paths import is_object_path, url_of
from keeplast.log.truncation import noted_log_start
from keeplast.model.partition import TopicPartition
from keeplast.run.receipt import Receipt
from keeplast.service.receipts import receipt_to
from keeplast.survey.bounds import load_checkpoints
from keeplast.survey.report import describe_error
from keeplast.tier.state.continuity import ReplacedRange
from keeplast.tier.state.partition_state import PartitionState

if TYPE_CHECKING:
    from keeplast.store.tiered_store import TieredStore

Fault = CompactionError | OSError
FaultText = Callable[[Exception], str]


class CopiedPartition(Struct, frozen=True):
    """A partition of the store after a copy; ``added`` are the sizes of its new segments, in bytes.

    ``replaced`` are ranges that the directory's took the place of. ``left_out`` says which offsets
    of the directory are not taken yet, and why.
    """

    state: PartitionState
    added: tuple[int, ...]
    replaced: tuple[ReplacedRange, ...] = ()
    left_out: str | None = None

    def document(self) -> dict[str, Any]:
        """Return what documents say of it."""
        return {
            "segments": len(self.state.routes), "added": len(self.added),
            "bytes": self.state.remote_bytes, "log_start": self.state.log_start,
            "remote_end": self.state.remote_end, "first_dirty": self.state.first_dirty(),
            "replaced": self.replaced, "left_out": self.left_out,
        }  # fmt: skip


Copied = CopiedPartition | Fault


class CopyTerms(Struct, frozen=True, kw_only=True):
    """Whether new partitions and active segments are taken, and who hears of it.

    ``takes_over`` takes a partition from another process. ``receipt`` is the file that takes a line
    of what was deleted in the directory and goes from the store, too. ``heard`` hears of each
    partition when it is done.
    """

    takes_new: bool = False
    takes_over: bool = False
    receipt: Path | None = None
    heard: Callable[[TopicPartition, Copied], None] = lambda partition, done: None
    planned: Callable[[int], None] = lambda count: None
    progressed: Callable[[int], None] = lambda count: None


class CopyAnswer(Struct, frozen=True):
    """What became of each partition; ``unknown`` are those that the store does not have."""

    data_dir: Path
    partitions: tuple[tuple[TopicPartition, Copied], ...]
    unknown: tuple[TopicPartition, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def copied(self) -> tuple[CopiedPartition, ...]:
        """Return the partitions that were copied."""
        return tuple(each for _, each in self.partitions if isinstance(each, CopiedPartition))

    @property
    def faults(self) -> tuple[Fault, ...]:
        """Return why the others were not."""
        return tuple(each for _, each in self.partitions if not isinstance(each, CopiedPartition))

    def document(self, fault_text: FaultText = error_text) -> dict[str, Any]:
        """Return what documents say of it."""
        return {
            "data_dir": self.data_dir,
            "partitions": [
                _named(at)
                | (
                    each.document()
                    if isinstance(each, CopiedPartition)
                    else {"error": _fault_document(each, fault_text)}
                )
                for at, each in self.partitions
            ],
            "unknown": [_named(each) for each in self.unknown],
            "warnings": self.warnings,
        }


class _SourceLog(Struct, frozen=True):
    """A partition of a directory, and what is set for it; its broker keeps tombstones for
    ``retention_ms`` at least.
    """

    partition: TopicPartition
    path: Path
    settings: dict[str, str] = field(default_factory=dict)
    retention_ms: int | None = None


class CopySource(Struct, frozen=True):
    """The chosen partitions of a data directory, and those refused before they are read."""

    data_dir: Path
    found: tuple[_SourceLog, ...]
    refused: tuple[tuple[TopicPartition, Fault], ...] = ()
    warnings: tuple[str, ...] = ()


def copy_directory(
    data_dir: Path,
    sources: SettingSources,
    opened: Callable[[], AbstractContextManager[TieredStore]],
    scope: PartitionChoice,
    terms: CopyTerms,
    *,
    grace_ms: int,
    warned: Callable[[str], None],
) -> CopyAnswer:
    """Copy the chosen partitions of a data directory into the store that ``opened`` opens.

    What may not be copied at all is in the answer, and without anything else no store is opened.
    """
    found = _find_copied(data_dir, scope, sources, takes_new=terms.takes_new)
    for warning in found.warnings:
        warned(warning)
    if found.refused and not found.found:
        for partition, error in found.refused:
            terms.heard(partition, error)
        return CopyAnswer(data_dir, found.refused, warnings=found.warnings)
    receipt = receipt_to(LocalFiles(), terms.receipt)
    with opened() as store:
        return _copy_partitions(
            store, found, scope.topics, terms, grace_ms=grace_ms, receipt=receipt
        )


def _find_copied(
    data_dir: Path, scope: PartitionChoice, sources: SettingSources, *, takes_new: bool
) -> CopySource:
    """Return what of a data directory may be copied; nothing of a store is opened before.

    InvalidError for what names nothing, and for settings that would count nowhere.
    """
    if is_object_path(data_dir):
        raise RefusedError(
            "a copy begins with a data directory on a disk of this host; name one. "
            f"url={url_of(data_dir)}",
            code="K160",
        )
    files = LocalFiles()
    if takes_new:
        selected, warnings = select_directory(data_dir, files, scope, sources)
        return CopySource(
            data_dir,
            tuple(
                _SourceLog(entry.partition, entry.path, given)
                for entry, given in selected
                if not isinstance(given, RefusedError)
            ),
            tuple(
                (entry.partition, given)
                for entry, given in selected
                if isinstance(given, RefusedError)
            ),
            warnings,
        )
    if sources.flags:
        raise InvalidError(
            "the settings of what is in a store are kept with it; leave --config out, or change "
            f"them with keeplast configure. --config={', '.join(sources.flags)}",
            code="K130",
        )
    directory = open_data_directory(data_dir, files)
    settings = read_settings(directory.root, files, sources)
    # A setting that is only meant for keeplast must not hide that the broker forgets sooner.
    brokers = read_settings(
        directory.root, files, SettingSources(broker_config=sources.broker_config)
    )
    names = directory.topics()
    return CopySource(
        data_dir,
        tuple(
            _SourceLog(
                entry.partition, entry.path,
                retention_ms=min(
                    each.topic_config(entry.partition.topic).delete_retention_ms
                    for each in (settings, brokers)
                ),
            )
            for entry in directory.partitions
            if entry.mark is None and entry.partition.topic in names
            and scope.includes(entry.partition)
        ),
        warnings=tuple(settings.warnings_of_broker),
    )  # fmt: skip


def _copy_partitions(
    store: TieredStore,
    source: CopySource,
    topics: Sequence[str],
    terms: CopyTerms,
    *,
    grace_ms: int,
    receipt: Receipt | None,
) -> CopyAnswer:
    """Copy one partition after the other, as their owner.

    InvalidError where the store has nothing of what was chosen, or of one of the named ``topics``,
    and new partitions are not taken.
    """
    known = set(store.partitions())
    chosen = [each for each in source.found if terms.takes_new or each.partition in known]
    unknown = tuple(
        each.partition
        for each in source.found
        if not terms.takes_new and each.partition not in known
    )
    if not terms.takes_new:
        _require_known(source, chosen, topics)
    done: list[tuple[TopicPartition, Copied]] = [*source.refused]
    for refused in source.refused:
        terms.heard(*refused)
    for each in chosen:
        copied = _copied(store, each, terms, is_known=each.partition in known,
                         grace_ms=grace_ms, receipt=receipt)  # fmt: skip
        terms.heard(each.partition, copied)
        done.append((each.partition, copied))
    return CopyAnswer(
        source.data_dir, tuple(sorted(done, key=lambda one: one[0])), unknown, source.warnings
    )


def _require_known(source: CopySource, chosen: Sequence[_SourceLog], topics: Sequence[str]) -> None:
    if not chosen:
        raise InvalidError(
            "none of the directory's partitions is in the store; keeplast copy --new takes new "
            f"ones in. path={source.data_dir}",
            code="K343",
        )
    for topic in topics:
        if all(each.partition.topic != topic for each in chosen):
            raise InvalidError(
                "the directory and the store do not both have this topic; correct --topic, or take "
                f"it in with keeplast copy --new. topic={topic} path={source.data_dir}",
                code="K114",
            )


def _copied(
    store: TieredStore, each: _SourceLog, terms: CopyTerms, *, is_known: bool, grace_ms: int,
    receipt: Receipt | None,
) -> Copied:  # fmt: skip
    replaced: list[ReplacedRange] = []
    try:
        before = store.state(each.partition) if is_known else None
        terms.planned(_bytes_to_copy(each.path, 0 if before is None else before.remote_end))
        if terms.takes_new:
            state = store.import_directory(
                each.partition, each.path, each.settings, progressed=terms.progressed,
                takes_over=terms.takes_over, grace_ms=grace_ms, receipt=receipt,
                replaced=replaced.append,
            )  # fmt: skip
        else:
            state = store.copy_directory(
                each.partition, each.path, progressed=terms.progressed,
                takes_over=terms.takes_over, grace_ms=grace_ms, receipt=receipt,
                retention_ms=each.retention_ms, replaced=replaced.append,
            )  # fmt: skip
        left_out = _left_out(state, each.path) if terms.takes_new else None
    except (CompactionError, OSError) as error:
        return error
    new = set(state.segments) - (set() if before is None else set(before.segments))
    sizes = tuple(state.segments[segment].size_bytes for segment in new)
    return CopiedPartition(state, sizes, tuple(replaced), left_out)


def _left_out(state: PartitionState, directory: Path) -> str | None:
    """Return what of a directory the store does not have and why, None when it has all of it."""
    files = LocalFiles()
    listing = list_partition(directory, files, if_empty=noted_log_start(files, directory))
    log_end = find_tail(listing, files).log_end
    if state.remote_end >= log_end:
        return None
    noted = load_checkpoints(files, directory.parent).high_watermark.get(state.partition)
    return (
        f"offsets {state.remote_end}..{log_end} are left out: they are above the high watermark "
        f"that the directory notes, {noted}, and could be truncated yet. Start the broker once and "
        "stop it in order, or let a later copy take them"
    )


def _bytes_to_copy(path: Path, start: int) -> int:
    """Return about how much a copy moves: the segments that begin at ``start`` or later."""
    files = LocalFiles()
    return sum(
        files.stat(path / name).size_bytes
        for name in files.listdir(path)
        if name.endswith(".log") and name[:20].isdigit() and int(name[:20]) >= start
    )


class ExportedLog(Struct, frozen=True):
    """A partition as a directory that a broker serves; ``log_end`` is exclusive."""

    partition: TopicPartition
    path: Path
    segments: int
    size_bytes: int
    log_start: int
    log_end: int


class WrittenLogs(Struct, frozen=True):
    """The partitions that were written below ``target``, and why others were not."""

    target: Path
    logs: tuple[ExportedLog, ...]
    faults: tuple[tuple[TopicPartition, Fault], ...]

    def document(self, fault_text: FaultText = error_text) -> dict[str, Any]:
        """Return what documents say of it."""
        rows: dict[TopicPartition, dict[str, Any]] = {
            each.partition: {
                "path": each.path, "segments": each.segments, "bytes": each.size_bytes,
                "log_start": each.log_start, "log_end": each.log_end,
            }
            for each in self.logs
        }  # fmt: skip
        for at, error in self.faults:
            rows[at] = {"error": _fault_document(error, fault_text)}
        return {
            "target": self.target,
            "partitions": [_named(each) | rows[each] for each in sorted(rows)],
        }


def write_logs(
    store: TieredStore,
    partitions: Iterable[TopicPartition],
    to: Path,
    *,
    planned: Callable[[int], None],
    progressed: Callable[[int], None],
) -> WrittenLogs:
    """Write partitions of a store below ``to``; one that fails says of itself that it is no log."""
    if is_object_path(to):
        raise RefusedError(
            f"a log is written on a disk; name a directory. --to={url_of(to)}", code="K160"
        )

    logs: list[ExportedLog] = []
    faults: list[tuple[TopicPartition, Fault]] = []
    for each in partitions:
        try:
            state, path = store.state(each), to / str(each)
            planned(state.effective_bytes())
            store.export(each, path, progressed)
            size = state.effective_bytes()
            logs.append(
                ExportedLog(each, path, len(state.routes), size, state.log_start, state.remote_end)
            )
        except (CompactionError, OSError) as error:
            faults.append((each, error))
    return WrittenLogs(to, tuple(logs), tuple(faults))


def _named(partition: TopicPartition) -> dict[str, Any]:
    return {"topic": partition.topic, "partition": partition.partition}


def _fault_document(error: Fault, fault_text: FaultText) -> dict[str, Any]:
    return describe_error(error).as_document() | {"message": fault_text(error)}
