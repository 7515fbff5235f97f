"""Makes what a round on the tier has staged live, one fenced transaction a group, ascending.

A crash between two groups leaves the first ones done: the newest record of a key is never removed,
so the round can be done again from what is there.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence

from keeplast.errors import CorruptError, InvariantError
from keeplast.format import time_index
from keeplast.format.checksum import crc32c
from keeplast.format.filename import LOG, SNAPSHOT, TIME_INDEX, parse_segment_file
from keeplast.rewrite.task import StagedGroup, TaskResult
from keeplast.survey.kept_heads import anchor_of
from keeplast.tier.metadata.facts import Anchor
from keeplast.tier.metadata.metadata_store import MetadataStore
from keeplast.tier.objects.object_store import ObjectStore, object_key
from keeplast.tier.objects.round_files import new_segment_id
from keeplast.tier.objects.transfer import EPOCHS, put_small
from keeplast.tier.state.kept_rounds import Keeping
from keeplast.tier.state.partition_state import PartitionState
from keeplast.tier.state.round_days import RoundSums
from keeplast.tier.state.segment import RemoteFile, RemoteSegment, SegmentKind, merged_epochs

COMMIT_ID_BYTES = 16
Committed = Callable[[tuple[RemoteSegment, ...], tuple[RemoteSegment, ...]], None]
"""Is told what a commit replaced and by what, after the commit and before the next one."""


class TierCommit:
    """Makes waves live, group after group, as the owner that the state names."""

    def __init__(
        self,
        store: MetadataStore,
        objects: ObjectStore,
        state: PartitionState,
        grace_ms: int,
        committed: Committed | None,
    ) -> None:
        """Commit for the owner of ``state``; ``committed`` hears of every group."""
        self._committed = committed
        self._store = store
        self._objects = objects
        self._state = state
        self._grace_ms = grace_ms
        self._anchor: Anchor | None = None
        self._sources = {
            state.segments[route.segment_id].base_offset: state.segments[route.segment_id]
            for route in state.routes
        }
        self._made: list[str] = []
        self._numbers = max((s.number for s in self._sources.values()), default=0)

    def anchor(self, line: bytes | None) -> None:
        """Let the next commits keep that this line of a receipt was written; None keeps nothing."""
        self._anchor = anchor_of(self._store.facts, line) or self._anchor

    def wave(self, result: TaskResult, keeping: Keeping | None = None) -> None:
        """Commit every group of a wave that has something to commit.

        ``keeping`` is the round for whose undo the sources are kept.

        CorruptError when what was read of a segment is not what was stored: nothing of the wave
        becomes live.
        """
        for base, crc in result.source_crcs.items():
            self._check_source(self._sources[base], crc)
        for outputs in _by_group(result.staged):
            if not any(output.files for output in outputs):
                continue
            sources = [self._sources[base] for base in outputs[0].sources]
            made = self._describe(result, outputs, sources)
            ids = [source.segment_id for source in sources]
            self._swap(ids, made, result.end_offset, keeping)
            self._made += [each.segment_id for each in made]
            if self._committed is not None:
                self._committed(tuple(sources), tuple(made))

    def _check_source(self, segment: RemoteSegment, crc: int) -> None:
        expected = segment.files[LOG].crc32c
        if crc != expected:
            raise CorruptError(
                "the object of a segment is not what was stored",
                path=self._key(segment.segment_id, segment.base_offset, LOG), position=0,
                expected=f"0x{expected:08x}", found=f"0x{crc:08x}",
            )  # fmt: skip

    def publish(
        self, cleaned_to: int, done: RoundSums | None = None, keeping: Keeping | None = None
    ) -> None:
        """Move the first dirty offset; ``done`` is what the round did, ``keeping`` as of a wave.

        What the waves made carries it.
        """
        self._store.publish(
            self._state.partition, secrets.token_hex(COMMIT_ID_BYTES),
            epoch=self._state.leader_epoch, cleaned_to=cleaned_to,
            settings=self._state.settings, began=self._state, anchor=self._anchor, done=done,
            keeping=keeping, outputs=self._made,
        )  # fmt: skip

    def _swap(
        self, sources: Sequence[str], outputs: Sequence[RemoteSegment], end_offset: int,
        keeping: Keeping | None,
    ) -> None:  # fmt: skip
        self._store.commit_swap(
            self._state.partition, secrets.token_hex(COMMIT_ID_BYTES),
            epoch=self._state.leader_epoch, sources=sources, outputs=outputs,
            grace_ms=self._grace_ms, settings=self._state.settings, anchor=self._anchor,
            cleaned_for=end_offset, keeping=keeping,
        )  # fmt: skip

    def _describe(
        self,
        result: TaskResult,
        outputs: Sequence[StagedGroup],
        sources: Sequence[RemoteSegment],
    ) -> list[RemoteSegment]:
        """Return what becomes live: the outputs cover what the sources covered, without a hole."""
        last_offset = sources[-1].last_offset
        ends = [output.base_offset - 1 for output in outputs[1:]] + [last_offset]
        epochs = merged_epochs(tuple(source.epochs for source in sources))
        made: list[RemoteSegment] = []
        for output, end in zip(outputs, ends, strict=True):
            self._numbers += 1
            segment_id = _segment_id(output)
            stored = self._files_of(output, segment_id, sources[-1], result)
            times = self._small(segment_id, output, TIME_INDEX)
            entries = time_index.decode(times)
            made.append(
                RemoteSegment(
                    segment_id=segment_id,
                    base_offset=output.base_offset,
                    last_offset=end,
                    epochs=epochs,
                    size_bytes=output.size_bytes,
                    max_timestamp_ms=int(entries[-1, 0]) if len(entries) else -1,
                    mtime_ms=sources[-1].mtime_ms,
                    kind=SegmentKind.CLEANED,
                    leader_epoch=self._state.leader_epoch,
                    number=self._numbers,
                    cleaner_offsets=dict(self._state.publications[-1].offsets),
                    files=stored,
                )
            )
        return made

    def _files_of(
        self, output: StagedGroup, segment_id: str, last: RemoteSegment, result: TaskResult
    ) -> dict[str, RemoteFile]:
        """Return every object of an output; what belongs to its end is the last source's (I-10)."""
        stored = {LOG: RemoteFile(output.size_bytes, result.output_crcs[output.base_offset])}
        for file in output.files:
            if file.kind != LOG:
                data = self._small(segment_id, output, file.kind)
                stored[file.kind] = RemoteFile(len(data), crc32c(data))
        for suffix in (SNAPSHOT, EPOCHS):
            if suffix in last.files:
                data = self._read(last, suffix)
                stored[suffix] = put_small(
                    self._objects, self._key(segment_id, output.base_offset, suffix), data
                )
        return stored

    def _small(self, segment_id: str, output: StagedGroup, suffix: str) -> bytes:
        key = self._key(segment_id, output.base_offset, suffix)
        return bytes(self._objects.read_range(key, 0, self._objects.stat(key).size_bytes))

    def _key(self, segment_id: str, base_offset: int, suffix: str) -> str:
        state = self._state
        return object_key(state.partition, state.topic_id, segment_id, base_offset, suffix)

    def _read(self, segment: RemoteSegment, suffix: str) -> bytes:
        key = self._key(segment.segment_id, segment.base_offset, suffix)
        return bytes(self._objects.read_range(key, 0, segment.files[suffix].size_bytes))


def _segment_id(output: StagedGroup) -> str:
    """Return the id under which a worker has staged an output: every attempt has its own."""
    parsed = parse_segment_file(output.files[0].name)
    if parsed is None or parsed.attempt is None:
        raise InvariantError(f"a staged file without an attempt. name={output.files[0].name}")
    return new_segment_id(parsed.attempt, parsed.base_offset)


def _by_group(staged: Sequence[StagedGroup]) -> list[list[StagedGroup]]:
    """Return the outputs, those of one group together: only its first has sources."""
    groups: list[list[StagedGroup]] = []
    for output in staged:
        if output.sources or not groups:
            groups.append([])
        groups[-1].append(output)
    return groups
