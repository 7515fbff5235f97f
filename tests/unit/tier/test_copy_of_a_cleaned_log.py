"""How far a log was cleaned goes along wherever the log goes: no copy shows a state that was not.

The logs are what a crash between a round's swap and its checkpoint leaves: the round took from the
clean section alone, so that nothing but the note next to the log shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

import keeplast
from keeplast.api.open_log import OpenLog
from keeplast.errors import RefusedError
from keeplast.format.checkpoint import encode_offsets
from keeplast.format.filename import CLEANED_FOR, CLEANER_CHECKPOINT
from keeplast.log.checkpoints import RoundNote, write_note
from keeplast.log.files import LocalFiles
from keeplast.tier.copy.importing import adopt_checkpoint
from keeplast.tier.metadata.stored_logs import shown_log
from keeplast.tier.objects.log_directory import LogDirectoryRecipe
from keeplast.tier.objects.round_files import ROOT, round_path
from tests.support.partition_maker import (
    COMPACT,
    DAY_MS,
    PARTITION,
    SMALL_SEGMENTS,
    clean,
    clean_request,
    one,
    write_partition,
)
from tests.support.tiered_log import Tiered

FILES = LocalFiles()
CLEAN_TO, CLEANED_FOR_END, LOG_END = 4, 8, 9
KEYS = {0: "ab", 2: "cd", 4: "ae", 6: "cf", 8: "g"}
"""The keys of each segment; what is dirty takes from the clean section alone."""


def written(root: Path, keys_of: Mapping[int, str] = KEYS) -> Path:
    segments = {
        base: b"".join(one(base + at, key.encode()) for at, key in enumerate(keys))
        for base, keys in keys_of.items()
    }
    directory = write_partition(root, segments)
    (root / CLEANER_CHECKPOINT).write_bytes(encode_offsets({PARTITION: CLEAN_TO}))
    return directory


def crashed(root: Path) -> Path:
    """Return the log of a round whose checkpoint was not written."""
    directory = written(root)
    clean(clean_request(directory, topic=SMALL_SEGMENTS))
    (root / CLEANER_CHECKPOINT).write_bytes(encode_offsets({PARTITION: CLEAN_TO}))
    write_note(directory, FILES, RoundNote(CLEANED_FOR_END, None, None), like=0)
    return directory


def adopted(tiered: Tiered, directory: Path) -> Tiered:
    adopt_checkpoint(tiered.store, FILES, directory, tiered.state, COMPACT)
    assert CLEAN_TO == tiered.state.first_dirty()
    return tiered


def stored(tiered: Tiered) -> OpenLog:
    recipe = LogDirectoryRecipe(ROOT, (shown_log(tiered.state, tiered.objects),))
    return OpenLog(round_path(PARTITION), files=recipe.open())


def check_shown(log: OpenLog, keys_of: Mapping[int, str] = KEYS) -> None:
    """As of every offset from the round's end on the state is the replay; no other is shown."""
    history = [(base + at, key.encode()) for base, keys in keys_of.items()
               for at, key in enumerate(keys)]  # fmt: skip
    for end in range(CLEANED_FOR_END):
        with pytest.raises(RefusedError, match="state as of this offset is gone"):
            log.state(COMPACT, end_offset=end)
    for end in range(CLEANED_FOR_END, LOG_END + 1):
        shown = {key: each.offset for key, each in log.state(COMPACT, end_offset=end).items()}
        assert {key: offset for offset, key in history if offset < end} == shown, end


def test_a_store_takes_what_the_note_says(tmp_path: Path) -> None:
    directory = crashed(tmp_path / "data")
    tiered = adopted(Tiered(tmp_path, directory), directory)
    assert CLEANED_FOR_END == tiered.state.earliest_as_of
    check_shown(stored(tiered))


def test_a_store_takes_what_counts_of_a_note_and_no_more(tmp_path: Path) -> None:
    """A round that wrote its note and replaced nothing refuses nothing."""
    directory = written(tmp_path / "data")
    size = (directory / f"{0:020d}.log").stat().st_size
    write_note(directory, FILES, RoundNote(CLEANED_FOR_END, (0, size), None), like=0)
    tiered = adopted(Tiered(tmp_path, directory), directory)
    assert CLEAN_TO == tiered.state.earliest_as_of


def test_what_is_copied_later_brings_its_note_and_what_came_before_does_not(tmp_path: Path) -> None:
    directory = written(tmp_path / "data")
    tiered = adopted(Tiered(tmp_path, directory, high_watermark=4), directory)
    write_note(directory, FILES, RoundNote(3, None, None), like=0)
    tiered.take_in(directory, high_watermark=6)
    assert (6, CLEAN_TO) == (tiered.state.remote_end, tiered.state.earliest_as_of)
    write_note(directory, FILES, RoundNote(CLEANED_FOR_END, None, None), like=0)
    tiered.take_in(directory)
    assert (LOG_END, CLEANED_FOR_END) == (tiered.state.remote_end, tiered.state.earliest_as_of)


def test_no_undo_in_the_store_forgets_what_a_copy_brought(tmp_path: Path) -> None:
    directory = written(tmp_path / "data")
    tiered = Tiered(tmp_path, directory, high_watermark=4)
    tiered.clean(replace(SMALL_SEGMENTS, undo_retention_ms=DAY_MS))
    write_note(directory, FILES, RoundNote(CLEANED_FOR_END, None, None), like=0)
    tiered.take_in(directory)
    (kept,) = tiered.store.undo_rows.kept(PARTITION)[1]
    assert (CLEANED_FOR_END, CLEANED_FOR_END) == kept.cleaned_for


def test_an_export_says_how_far_its_log_was_cleaned(tmp_path: Path) -> None:
    directory = crashed(tmp_path / "data")
    tiered = adopted(Tiered(tmp_path, directory), directory)
    exported = tiered.export(tmp_path / "out" / str(PARTITION))
    assert (exported / CLEANED_FOR).exists()
    check_shown(keeplast.open_log(exported))


def test_a_target_says_how_far_its_log_was_cleaned(tmp_path: Path) -> None:
    """A round that begins above what is clean moves no checkpoint."""
    keys = KEYS | {2: "xd", 6: "bf"}
    directory = written(tmp_path / "data", keys)
    (directory.parent / CLEANER_CHECKPOINT).write_bytes(encode_offsets({PARTITION: 2}))
    request = clean_request(directory, topic=SMALL_SEGMENTS)
    target = tmp_path / "target"
    clean(replace(request, first_dirty_offset=CLEAN_TO, target=target))
    check_shown(keeplast.open_log(target / str(PARTITION)), keys)
