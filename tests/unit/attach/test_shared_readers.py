"""A round opens a segment once in a process, and what it has open stays there."""

from __future__ import annotations

import pickle
from collections import Counter
from pathlib import Path
from typing import cast

import pytest

from keeplast.attach.rounds import attached_files
from keeplast.attach.rounds.attached_files import READERS_KEPT, SharedReaders
from keeplast.cluster.layouts.layout import RemoteLayout, SegmentReader
from keeplast.cluster.layouts.local_storage import LocalStorage
from keeplast.format.remote_log_metadata import RemoteLogSegment, RemoteLogSegmentId
from tests.support.heard_calls import hear
from tests.support.remote_segments import remote_segment
from tests.unit.attach.test_attached_rounds import World


class Opening:
    """A layout that counts what is opened."""

    def __init__(self) -> None:
        self.opened: Counter[RemoteLogSegmentId] = Counter()

    def open(self, segment: RemoteLogSegment) -> SegmentReader:
        self.opened[segment.id] += 1
        return cast(SegmentReader, object())


def test_a_segment_is_opened_again_when_it_was_forgotten_or_others_came() -> None:
    opening = Opening()
    layout, readers = cast(RemoteLayout, opening), SharedReaders()
    segments = [remote_segment(size_bytes=9, number=number) for number in range(READERS_KEPT + 1)]
    first = readers.open(layout, segments[0])
    assert first is readers.open(layout, segments[0])
    readers.forget(segments[0].id)
    readers.forget(segments[1].id)
    assert first is not readers.open(layout, segments[0])
    for each in segments:
        readers.open(layout, each)
    assert 2 == opening.opened[segments[0].id]
    readers.open(layout, segments[0])
    assert 3 == opening.opened[segments[0].id]


def test_nothing_that_is_open_leaves_the_process() -> None:
    opening = Opening()
    readers = SharedReaders()
    readers.open(cast(RemoteLayout, opening), remote_segment(size_bytes=9))
    other = pickle.loads(pickle.dumps(readers))
    other.open(cast(RemoteLayout, opening), remote_segment(size_bytes=9))
    assert [2] == list(opening.opened.values())


def test_a_round_opens_each_of_its_sources_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attached_files, "READERS_KEPT", 1000)
    world = World(tmp_path)
    opened: Counter[RemoteLogSegmentId] = Counter()
    sources = {each.id for each in world.tier.served()}
    hear(monkeypatch, LocalStorage, "open", lambda layout, segment: opened.update([segment.id]))
    assert not world.clean().skipped
    read = {name: count for name, count in opened.items() if name in sources}
    assert len(read) >= 2
    assert {1} == set(read.values())
