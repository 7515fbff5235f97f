"""Puts back what the newest round of a partition replaced, by the swap that rounds use themselves.

Only where the log is still what the round left, byte for byte, so that nothing that was written or
cleaned since is lost. Records that were appended after the round stay. The order is the rule:

1. everything is read and compared; a line of the receipt says what is about to happen;
2. the kept segments are staged under second names: from here on nothing takes the log for settled;
3. the cleaner checkpoint goes back. If that came after the files, it would call clean what is dirty
   again, and a later round could drop a tombstone and leave a value that it deletes;
4. files come back, the highest offsets first: a tombstone is there again before the values that it
   deletes. A crash between two of these swaps leaves what one between two waves of a round leaves,
   and neighbours come back at once or not at all;
5. producer snapshots; then the kept segments go, their list first.

Any step may be interrupted, and the next call goes on. The caller holds the directory's lock.

An erasure request bars undos of its topics: the segments that a round has kept may have its keys.
Requests have keyed hashes alone, so the meant records are unknown here. That part is pure.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum, auto
from functools import partial
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from keeplast.errors import CompactionError, InvalidError, RefusedError
from keeplast.format.checksum import crc32c
from keeplast.format.filename import (
    CLEANER_CHECKPOINT,
    DELETED,
    INDEX,
    LOG,
    SNAPSHOT,
    TIME_INDEX,
    Kind,
    SegmentFile,
    parse_undo_file,
    segment_file,
)
from keeplast.log.checkpoints import (
    RoundNote,
    cleaned_for,
    drop_from_checkpoint,
    find_witness,
    read_checkpoint,
    settle_note,
    update_checkpoint,
    write_note,
)
from keeplast.log.data_directory import DataDirectory, PartitionEntry
from keeplast.log.files import FileSystem, reading
from keeplast.log.log_end import check_understood
from keeplast.log.partition_log import PartitionFiles, SegmentFiles, list_partition
from keeplast.log.paths import is_object_path, url_of
from keeplast.log.recovery import is_settled, recover_swap
from keeplast.log.root_files import REQUESTS_NAME, read_book
from keeplast.log.swap import Replacement, commit_wave
from keeplast.log.undo_files import KeptFiles, drop_rounds, is_plain, kept_paths, read_kept
from keeplast.model.erasure_request import RequestBook
from keeplast.model.partition import TopicPartition
from keeplast.model.undo import (
    KeptGroup,
    KeptSegment,
    KeptWave,
    UndoBar,
    UndoRefusal,
    above_log_start,
)
from keeplast.run.commit import remove_files, settled, shielded
from keeplast.run.events import Events, NoEvents
from keeplast.run.receipt import append_receipt, undo_line, withdraw_receipt
from keeplast.survey.bounds import actual_log_start, load_checkpoints
from keeplast.survey.wording import undo_words


def erasure_refusal(book: RequestBook, topic: str) -> str | None:
    """Return why a round of ``topic`` cannot be undone, None where no request names the topic."""
    wanted = book.wants(topic)
    return None if wanted is None else f"keys of the topic are to be erased: request {wanted}"


def erasure_bar(book: RequestBook, topic: str, where: str) -> None:
    """Raise RefusedError where keys of ``topic`` are to be gone; ``where`` the requests count."""
    wanted = book.wants(topic)
    if wanted is not None:
        raise RefusedError(
            "keys of the topic are to be erased, and the replaced segments may have them; leave "
            "the round as it is. Or forget a request that has its certificate (keeplast erase "
            f"requests --forget). request={wanted} path={where}",
            code="K605",
        )


READ_BYTES = 1 << 20
TOKEN_BYTES = 8
Crc = Callable[[Path], int]


class GroupStanding(StrEnum):
    """What of a group is in the log: what took its place, what was found, or something else."""

    IN_PLACE = auto()
    AS_FOUND = auto()
    CHANGED = auto()


class UndoRound(Struct, frozen=True):
    """A round that has something kept, as found.

    Offsets [first, end) are those of its groups. ``segments`` are those that would come back, and
    ``bytes`` those of their ``.log`` files. ``is_in_place`` is False where nothing of the round is
    in the log: it never was, or came back already. ``refusal`` says why it cannot be undone.
    """

    topic: str
    partition: int
    round: str
    kept_at_ms: int
    until_ms: int
    first: int
    end: int
    segments: int
    bytes: int
    checkpoint: int | None
    is_in_place: bool
    refusal: str | None


class _HeldRound(Struct, frozen=True):
    """A round of a partition against its log; ``groups`` are what the log start has left of it."""

    waves: tuple[KeptWave, ...]
    groups: tuple[tuple[KeptGroup, GroupStanding], ...]
    checkpoint: int | None
    refusal: UndoRefusal | None

    @property
    def attempt(self) -> str:
        return self.waves[0].attempt

    @property
    def to_put_back(self) -> list[KeptGroup]:
        """Return the groups that are in place and would go, ascending."""
        return [group for group, standing in self.groups if standing is GroupStanding.IN_PLACE]

    @property
    def is_in_place(self) -> bool:
        """Say whether anything of the round counts: a segment, or the checkpoint alone."""
        return bool(self.to_put_back) or self.checkpoint != self.waves[0].checkpoint_before

    @property
    def is_untouched(self) -> bool:
        """Say whether all of the log is as the round found it."""
        is_as_found = all(standing is GroupStanding.AS_FOUND for _, standing in self.groups)
        return is_as_found and not self.is_in_place


def refuse_stores(path: Path) -> None:
    """Raise RefusedError for a place in an object store."""
    if is_object_path(path):
        raise RefusedError(
            "undo is for data directories on disks; what rounds in a store have kept comes back by "
            f"keeplast undo STORE. url={url_of(path)}",
            code="K606",
        )


def choose_undo(
    directory: DataDirectory, includes: Callable[[TopicPartition], bool]
) -> tuple[PartitionEntry, ...]:
    """Return the partitions in service that are meant; InvalidError when there is none."""
    chosen = tuple(
        each for each in directory.partitions if each.mark is None and includes(each.partition)
    )
    if not chosen:
        raise InvalidError(
            f"no such partition in the data directory; see what there is with keeplast status. "
            f"path={directory.root}",
            code="K115",
        )
    return chosen


def find_undo(files: FileSystem, entry: PartitionEntry) -> tuple[UndoRound, ...]:
    """Return every round that has something kept, the newest first; reads no segment.

    A round that looks whole here may still be refused when its bytes are read. OSError or
    CompactionError when the partition cannot be looked at.
    """
    kept = read_kept(files, entry.path)
    rounds = kept.rounds()
    if not rounds:
        return ()
    found = (
        _shown(entry.partition, _look(files, entry, kept, waves, crc=None, is_newest=not number))
        for number, waves in enumerate(reversed(rounds))
    )
    book = read_book(files, entry.path.parent / REQUESTS_NAME)
    why = erasure_refusal(book, entry.partition.topic)
    return tuple(replace(each, refusal=each.refusal or why) for each in found)


def drop_kept(files: FileSystem, entry: PartitionEntry) -> int:
    """Remove all that is kept of a partition; returns how many rounds can no longer be undone."""
    attempts = {each.attempt for each in read_kept(files, entry.path).files}
    drop_rounds(files, entry.path, attempts)
    return len(attempts)


def undo_newest(
    files: FileSystem,
    entry: PartitionEntry,
    *,
    receipt: Path | None,
    now_ms: int,
    writes: bool = True,
    warned: Callable[[str], None],
    events: Events | None = None,
) -> UndoRound | None:
    """Undo the newest round that has something kept; None where nothing is.

    One that has nothing in the log is only forgotten, and says so. ``writes`` False finds out
    whether it can be done. ``events`` hear of the bytes that are compared. RefusedError when it
    cannot be done; CorruptError, OSError.
    """
    heard = NoEvents() if events is None else events
    path = entry.path
    check_understood(path, files)
    book = read_book(files, entry.path.parent / REQUESTS_NAME)
    erasure_bar(book, entry.partition.topic, str(entry.path))
    if writes:
        with shielded():
            recover_swap(files, path)
    elif not is_settled(files, path):
        raise RefusedError(
            "files of an interrupted swap lie here, which undo would finish first; leave "
            f"--dry-run out, or run keeplast clean. path={path}",
            code="K204",
        )
    kept = read_kept(files, path)
    rounds = kept.rounds()
    if not rounds:
        kept.require_lists(path)
        if writes:
            drop_rounds(files, path, ())  # what an interrupted undo, or drop, had still to remove
        return None
    crc = partial(file_crc32c, files, progressed=heard.progressed)
    heard.planned(sum(wave.compared_bytes() for wave in rounds[-1]))
    found = _look(files, entry, kept, rounds[-1], crc=crc, is_newest=True)
    if found.refusal is not None:
        raise RefusedError(
            f"the round cannot be undone: {undo_words(found.refusal)}; what it has kept goes in "
            f"its time, or with keeplast undo --drop. round={found.attempt} path={path}",
            code="K605",
        )
    if writes:
        with shielded():
            _undo(files, entry, found, receipt, now_ms, warned)
    return _shown(entry.partition, found)


def _look(
    files: FileSystem,
    entry: PartitionEntry,
    kept: KeptFiles,
    waves: Sequence[KeptWave],
    *,
    crc: Crc | None,
    is_newest: bool,
) -> _HeldRound:
    """Hold a round against the log; with ``crc`` by all bytes, else by sizes and names."""
    listing = list_partition(entry.path, files, if_empty=0)
    checkpoints = load_checkpoints(files, entry.path.parent)
    log_start = actual_log_start(entry.partition, checkpoints, listing)
    checkpoint = checkpoints.cleaner.get(entry.partition)
    left = [above_log_start(wave, log_start) for wave in waves]
    groups = sorted(
        (group for wave in left if wave is not None for group in wave.groups),
        key=lambda group: group.base_offset,
    )
    standings = tuple((group, _standing(group, listing, crc)) for group in groups)
    found = _HeldRound(tuple(waves), standings, checkpoint, None)
    if not is_newest:
        refusal: UndoRefusal | None = UndoRefusal(UndoBar.LATER_ROUND)
    elif None in left or _is_all_gone(waves, groups):
        refusal = UndoRefusal(UndoBar.LOG_START, log_start)
    else:
        refusal = _refusal(files, entry, kept, found, crc)
    return replace(found, refusal=refusal)


def _is_all_gone(waves: Sequence[KeptWave], groups: Sequence[KeptGroup]) -> bool:
    """Say whether the log start has left nothing of what the round replaced."""
    was_any = any(wave.kept_bases() for wave in waves)
    return not groups or (was_any and all(group.is_left_alone for group in groups))


def _refusal(
    files: FileSystem, entry: PartitionEntry, kept: KeptFiles, found: _HeldRound, crc: Crc | None
) -> UndoRefusal | None:
    waves = found.waves
    if found.is_untouched:
        return None  # it is only forgotten, which costs nothing
    first_number = waves[0].number
    names = [parse_undo_file(name) for name in kept.damaged]
    is_damaged = any(each is not None and each.number >= first_number for each in names)
    if is_damaged or [wave.wave for wave in waves] != list(range(1, len(waves) + 1)):
        return UndoRefusal(UndoBar.DAMAGED_LIST)
    for group, standing in found.groups:
        if standing is GroupStanding.CHANGED:
            return UndoRefusal(UndoBar.CHANGED, group.base_offset)
    allowed = {waves[0].checkpoint_before}
    if waves[-1].is_last and waves[-1].checkpoint_after is not None:
        allowed.add(waves[-1].checkpoint_after)
    if found.checkpoint not in allowed:
        return UndoRefusal(UndoBar.CHECKPOINT, found.checkpoint)
    for group in found.to_put_back:
        for source in group.sources:
            bar = _copy_bar(files, entry.path, found.attempt, source, crc)
            if bar is not None:
                return UndoRefusal(bar, source.base_offset)
    return None


def _copy_bar(
    files: FileSystem, path: Path, attempt: str, source: KeptSegment, crc: Crc | None
) -> UndoBar | None:
    paths = kept_paths(files, path, attempt, source.base_offset)
    log = paths.get(LOG)
    if log is None or files.stat(log).size_bytes != source.size_bytes:
        return UndoBar.COPY
    if crc is not None and source.crc32c is not None and crc(log) != source.crc32c:
        return UndoBar.COPY
    if crc is not None and not all(is_plain(files, each) for each in paths.values()):
        return UndoBar.COPY
    # A start-up that completes a swap without them makes 10 MiB of zeros (formats.md 3.3).
    return None if {INDEX, TIME_INDEX} <= paths.keys() else UndoBar.NO_INDEX


def _standing(group: KeptGroup, listing: PartitionFiles, crc: Crc | None) -> GroupStanding:
    live = [
        each
        for each in listing.segments
        if group.base_offset <= each.base_offset < group.end_offset
    ]
    read: dict[int, int] = {}

    def fits(wanted: Sequence[KeptSegment]) -> bool:
        same = [each.base_offset for each in live] == [each.base_offset for each in wanted]
        return same and all(_fits(a, b, crc, read) for a, b in zip(live, wanted, strict=True))

    # A start-up that finishes a swap leaves sources beyond the end of the last output.
    left = max(len(live) - len(group.outputs), 0)
    in_place = (*group.outputs, *group.sources[len(group.sources) - left :])
    is_found = fits(group.sources)
    if group.is_left_alone:
        return GroupStanding.AS_FOUND if is_found else GroupStanding.CHANGED
    if is_found and fits(in_place):
        # Where the bytes are the same, the files themselves decide; those of a copied directory
        # do not.
        is_found = [each.inode for each in live] == [each.inode for each in group.sources]
        return GroupStanding.AS_FOUND if is_found else GroupStanding.IN_PLACE
    if is_found:
        return GroupStanding.AS_FOUND
    return GroupStanding.IN_PLACE if fits(in_place) else GroupStanding.CHANGED


def _fits(live: SegmentFiles, wanted: KeptSegment, crc: Crc | None, read: dict[int, int]) -> bool:
    if live.size_bytes != wanted.size_bytes:
        return False
    if crc is None or wanted.crc32c is None:
        return True
    if live.base_offset not in read:
        read[live.base_offset] = crc(live.log_path)
    return read[live.base_offset] == wanted.crc32c


def file_crc32c(
    files: FileSystem, path: Path, progressed: Callable[[int], None] = lambda count: None
) -> int:
    """Return the CRC-32C of a whole file; ``progressed`` hears of its bytes."""
    found, position, buffer = 0, 0, memoryview(bytearray(READ_BYTES))
    with reading(files, path) as handle:
        while count := handle.pread_into(buffer, position):
            found = crc32c(buffer[:count], found)
            position += count
            progressed(count)
    return found


def _shown(partition: TopicPartition, found: _HeldRound) -> UndoRound:
    groups = [group for wave in found.waves for group in wave.groups]
    back = [source for group in found.to_put_back for source in group.sources]
    first, last = found.waves[0], found.waves[-1]
    return UndoRound(
        topic=partition.topic,
        partition=partition.partition,
        round=found.attempt,
        kept_at_ms=last.kept_at_ms,
        until_ms=last.until_ms,
        first=groups[0].base_offset if groups else 0,
        end=groups[-1].end_offset if groups else 0,
        segments=len(back),
        bytes=sum(source.size_bytes for source in back),
        checkpoint=first.checkpoint_before,
        is_in_place=found.is_in_place,
        refusal=None if found.refusal is None else undo_words(found.refusal),
    )


def _undo(
    files: FileSystem,
    entry: PartitionEntry,
    found: _HeldRound,
    receipt: Path | None,
    now_ms: int,
    warned: Callable[[str], None],
) -> None:
    path = entry.path
    if found.is_in_place:
        line = None
        if receipt is not None:
            undone = undo_line(
                entry.partition, now_ms, attempt=found.attempt, groups=found.to_put_back,
                checkpoint=found.waves[0].checkpoint_before,
            )  # fmt: skip
            line = append_receipt(files, receipt, undone)
        try:
            _put_back(files, entry, found, warned)
        except (CompactionError, OSError):
            if line is not None and receipt is not None and _is_untouched(files, entry, found):
                withdraw_receipt(files, receipt, line)
            raise
    _bring_snapshots(files, path, found)
    settle_note(list_partition(path, files, if_empty=0), files)
    drop_rounds(files, path, {found.attempt})


def _is_untouched(files: FileSystem, entry: PartitionEntry, found: _HeldRound) -> bool:
    try:
        listing = list_partition(entry.path, files, if_empty=0)
    except CompactionError:
        return False  # a swap that could be neither finished nor undone
    checkpoint = read_checkpoint(files, entry.path.parent, CLEANER_CHECKPOINT)
    return checkpoint.get(entry.partition) == found.checkpoint and all(
        _standing(group, listing, None) is standing for group, standing in found.groups
    )


def _put_back(
    files: FileSystem, entry: PartitionEntry, found: _HeldRound, warned: Callable[[str], None]
) -> None:
    path, before = entry.path, found.waves[0].checkpoint_before
    staged: dict[int, dict[Kind, str]] = {}
    try:
        for group in found.to_put_back:
            for source in group.sources:
                names = staged.setdefault(source.base_offset, {})
                _stage(files, path, found.attempt, source, names)
        files.fsync_directory(path)
        _note_end(files, entry, found)
        if before is None:
            drop_from_checkpoint(files, path.parent, CLEANER_CHECKPOINT, entry.partition)
        else:
            update_checkpoint(files, path.parent, CLEANER_CHECKPOINT, {entry.partition: before})
        for run in reversed(_neighbours(found)):
            live = [each.base_offset for each in list_partition(path, files).segments]
            with settled(files, path, warned):
                replaced = commit_wave(files, path, _replacements(run, live, staged))
            remove_files(files, replaced, warned)
    except (CompactionError, OSError):
        given = [path / name for each in staged.values() for name in each.values()]
        remove_files(files, given, warned)
        raise


def _note_end(files: FileSystem, entry: PartitionEntry, found: _HeldRound) -> None:
    """Write down how far the round has looked.

    What is in place of it goes last, after the line of the cleaner that says so. The lowest source
    comes back last, and with it all of them have.
    """
    listing = list_partition(entry.path, files, if_empty=0)
    ends = [found.checkpoint, cleaned_for(listing, files)]
    end_offset = max((each for each in ends if each is not None), default=0)
    sources = [source for group in found.to_put_back for source in group.sources]
    witness = find_witness(
        [(each.base_offset, each.size_bytes) for each in sources],
        [(each.base_offset, each.size_bytes) for each in listing.segments],
    )
    if end_offset and sources:
        note = RoundNote(end_offset, witness, found.waves[0].cleaned_for)
        write_note(entry.path, files, note, like=listing.segments[0].base_offset)


def _stage(
    files: FileSystem, path: Path, attempt: str, source: KeptSegment, names: dict[Kind, str]
) -> None:
    """Give what was kept of a segment staged names; fills ``names``, by kind, before each."""
    token = secrets.token_hex(TOKEN_BYTES)
    for kind, kept in kept_paths(files, path, attempt, source.base_offset).items():
        if kind != SNAPSHOT:
            names[kind] = SegmentFile(source.base_offset, kind, DELETED, token).name
            files.link(kept, path / names[kind])
            files.fsync(path / names[kind])


def _neighbours(found: _HeldRound) -> list[list[KeptGroup]]:
    """Return what is to be put back run by run, ascending, split where a segment stays between.

    A start-up takes what lies between two completed outputs of one swap for superseded.
    """
    runs: list[list[KeptGroup]] = []
    is_open = False
    for group, standing in found.groups:
        if standing is GroupStanding.IN_PLACE:
            if not is_open:
                runs.append([])
            runs[-1].append(group)
        is_open = standing is GroupStanding.IN_PLACE
    return runs


def _replacements(
    run: Sequence[KeptGroup], live: Sequence[int], staged: Mapping[int, Mapping[Kind, str]]
) -> list[Replacement]:
    """Return a run as one segment that becomes several: all of it comes back, or none.

    Otherwise a crash could leave its lower part put back and the upper part not.
    """
    outputs = tuple(base for base in live if run[0].base_offset <= base < run[-1].end_offset)
    bases = [source.base_offset for group in run for source in group.sources]
    return [
        Replacement(base, dict(staged[base]), () if number else outputs)
        for number, base in enumerate(bases)
    ]


def _bring_snapshots(files: FileSystem, path: Path, found: _HeldRound) -> None:
    """Give producer snapshots their names again that went with the round."""
    was_any = False
    for group, _ in found.groups:
        for source in () if group.is_left_alone else group.sources:
            kept = kept_paths(files, path, found.attempt, source.base_offset).get(SNAPSHOT)
            live = path / segment_file(source.base_offset, SNAPSHOT)
            if kept is not None and not files.exists(live):
                files.link(kept, live)
                was_any = True
    if was_any:
        files.fsync_directory(path)
