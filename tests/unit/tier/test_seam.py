"""A directory goes on where the store ends, or is another log, though its leader epochs are not."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from keeplast.errors import ConflictError
from keeplast.format import offset_index
from keeplast.format.filename import INDEX, LOG, segment_file
from keeplast.format.message_set import read_batches
from tests.support.broker_directory import BrokerDirectory
from tests.support.cleaned_directory import CleanedDirectory
from tests.support.partition_maker import PARTITION


def test_a_disk_that_went_back_to_a_backup_is_another_log_at_the_same_epochs(
    tmp_path: Path,
) -> None:
    broker = BrokerDirectory(tmp_path)
    broker.append("a", "b")
    shutil.copytree(broker.path, tmp_path / "backup")
    broker.append("c", epoch=1)
    broker.append("d", epoch=1)
    broker.import_all()
    before = broker.values()
    shutil.rmtree(broker.path)
    shutil.copytree(tmp_path / "backup", broker.path)
    broker.append("C", "D", "E", epoch=1)
    broker.append("F", epoch=1)
    for act in (broker.copy, broker.import_all):
        with pytest.raises(ConflictError, match=r"other batches at one offset.*offset=3 "):
            act()
    assert {0: "a", 1: "b", 2: "c", 3: "d"} == before == broker.values()


def test_so_is_a_topic_without_an_id_that_was_made_again(tmp_path: Path) -> None:
    broker = BrokerDirectory(tmp_path)
    broker.append("a", "b")
    broker.import_all()
    shutil.rmtree(broker.path)
    broker.append("x", "y", "z")
    with pytest.raises(ConflictError, match="other batches"):
        broker.copy()
    broker.tiered.removals.forget(PARTITION, grace_ms=0)
    broker.import_all()
    assert {0: "x", 1: "y", 2: "z"} == broker.values()


def test_an_index_that_lies_does_not_hide_it(tmp_path: Path) -> None:
    broker = BrokerDirectory(tmp_path)
    broker.append("a", "b")
    broker.import_all()
    shutil.rmtree(broker.path)
    broker.append("x", "y", "z")
    *_, last = read_batches((broker.path / segment_file(0, LOG)).read_bytes())
    (broker.path / segment_file(0, INDEX)).write_bytes(offset_index.encode([(0, last.position)]))
    with pytest.raises(ConflictError, match=r"other batches at one offset.*offset=0 "):
        broker.copy()
    assert {0: "a", 1: "b"} == broker.values()


@pytest.mark.parametrize("cleans_store", [False, True])
def test_what_either_side_has_cleaned_is_the_same_log(tmp_path: Path, cleans_store: bool) -> None:
    log = CleanedDirectory(tmp_path)
    for key in (b"a", b"b", b"a", b"c"):
        log.put(key, b"1")
    log.put_segment((b"b", None))
    log.copy()
    if cleans_store:
        log.tiered.clean(PARTITION, force=True, grace_ms=0)
    log.put_segment((b"a", b"2"), (b"c", None))
    log.clean()
    log.put_segment((b"d", b"1"))
    log.copy()
    assert {b"a": b"2", b"d": b"1"} == log.exported().final_values() == log.served().final_values()
