"""When a certificate is issued no key is anywhere that it says was searched; else one is.

Random logs, rounds at random times, deletes of some keys behind them. The keys are looked for byte
by byte, in every file of the directory, batches decompressed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from keeplast.config.choice import ALL_PARTITIONS, SettingSources
from keeplast.config.selection import Selection, select_partitions
from keeplast.errors import RefusedError
from keeplast.format.compression import decompress
from keeplast.format.control import ControlType
from keeplast.format.filename import LOG
from keeplast.log.append import LogAppender, NewRecord
from keeplast.log.files import LocalFiles
from keeplast.model.erasure_request import ErasureRequest
from keeplast.model.keyed_hash import KeyHasher
from keeplast.model.topic_config import TopicConfig
from keeplast.read.log_reader import read_segment
from keeplast.rewrite.workspace import MEMORY_BYTES_MIN
from keeplast.run.coordinator import Coordinator
from keeplast.run.events import NoEvents
from keeplast.run.local_runner import LocalRunner
from keeplast.service.erasure.certificate import (
    CertifiedPlace,
    ReceiptStanding,
    directory_place,
    make_certificate,
)
from keeplast.service.erasure.certificate_check import read_certificate
from keeplast.service.erasure.erasing import find_traces
from keeplast.service.erasure.erasure_answer import ErasureAnswer, ErasureKeys
from keeplast.service.erasure.erasure_book import (
    FileShelf,
    add_request,
    keys_of_file,
    keys_of_requests,
)
from keeplast.signing import SignatureCheck, Signer
from keeplast.survey.request import CleanRequest
from tests.support.key_pair import write_operator_files
from tests.support.log_script import (
    FIRST_PRODUCER_ID,
    KEYS,
    PRODUCERS,
    START_MS,
    Append,
    Operation,
    scripts,
    write_script,
)
from tests.support.manual_clock import ManualClock
from tests.support.partition_maker import PARTITION
from tests.support.turns import examples

SECOND = 1000
NAMES = {number: b"key%d" % number for number in range(1, KEYS)}
HASHER = KeyHasher(b"h" * 32)
END_MS = START_MS + 1_000 * SECOND
LATER = {
    "compaction.strategy": ("offset", "timestamp"),
    "delete.retention.ms": ("0", "40000"),
    "undo.retention.ms": ("0", "50000"),
}


class Place(Protocol):
    """Where keys are, what is asked about them, and the same byte by byte."""

    def ask(self, keys: ErasureKeys, now_ms: int) -> ErasureAnswer: ...

    def has(self, key: bytes) -> bool: ...

    def place(self) -> CertifiedPlace: ...


class Directory:
    """One log of a data directory, its rounds, and what is asked about it."""

    def __init__(self, root: Path, script: tuple[Operation, ...], flags: tuple[str, ...]) -> None:
        self.root = root
        self.files = LocalFiles()
        self.sources = SettingSources(
            flags=("cleanup.policy=compact", "segment.bytes=1048576", *flags), environment={}
        )
        self.topic = TopicConfig(cleanup_policy=frozenset({"compact"}), segment_bytes=1 << 20)
        write_script(script, root / str(PARTITION), self.topic)

    @property
    def selection(self) -> Selection:
        return select_partitions(self.root, self.files, ALL_PARTITIONS, self.sources)

    def round(self, now_ms: int) -> None:
        request = CleanRequest(
            self.selection.partitions,
            memory_bytes=MEMORY_BYTES_MIN,
            rounds=None,
            force=True,
            expired=True,
            rolls_idle=True,
        )
        with LocalRunner(1) as runner:
            coordinator = Coordinator(runner, ManualClock(now_ms), self.files, NoEvents())
            (report,) = coordinator.clean(request).partitions
        for each in report.rounds:
            assert each.failure is None, each.failure

    def ask(self, keys: ErasureKeys, now_ms: int) -> ErasureAnswer:
        return find_traces(self.selection, self.files, now_ms, keys, memory_bytes=MEMORY_BYTES_MIN)

    def place(self) -> CertifiedPlace:
        return directory_place(None)

    def has(self, key: bytes) -> bool:
        """Look for a key byte by byte, what is kept for undo too, decompressed."""
        for path in (self.root / str(PARTITION)).rglob("*"):
            if key in path.read_bytes():
                return True
            if LOG in path.name:
                for batch in read_segment(self.files, path):
                    if key in bytes(decompress(batch.codec, bytes(batch.payload()))):  # type: ignore[union-attr]
                        return True
        return False


@settings(max_examples=examples(25, long=2000))
@given(
    script=scripts(),
    chosen=st.sets(st.sampled_from(sorted(NAMES)), min_size=1).map(frozenset),
    flags=st.fixed_dictionaries({key: st.sampled_from(values) for key, values in LATER.items()}),
    times=st.lists(st.integers(START_MS, START_MS + 600 * SECOND), max_size=2).map(sorted),
    is_deleted=st.booleans(),
)
def test_a_certificate_is_issued_exactly_when_no_key_is_there(
    script: tuple[Operation, ...],
    chosen: frozenset[int],
    flags: dict[str, str],
    times: list[int],
    is_deleted: bool,
) -> None:
    # A key in somebody's value or header is not searched for, and would be found byte by byte.
    assume(not any(name in data for name in NAMES.values() for data in other_bytes(script)))
    with tempfile.TemporaryDirectory() as folder:
        operator = write_operator_files(Path(folder) / "apart")
        signer, check = Signer(operator.sign_key), SignatureCheck(operator.public_key)
        root = Path(folder) / "data"
        log = Directory(root, script, tuple(f"{key}={value}" for key, value in flags.items()))
        plain = {number: NAMES[number] for number in chosen}
        keys = keys_of_file(plain, HASHER, ())
        path = root / "keeplast-erasures"
        request = add_request(FileShelf(log.files, path), keys, (), log.ask(keys, START_MS))
        blind = keys_of_requests([request], HASHER)
        if is_deleted:
            delete(log.root / str(PARTITION), log.topic, chosen)
        # The first round dates a tombstone, the next one takes it, and keeps what it replaced for
        # undo: that is gone with the last.
        ends = [END_MS, END_MS + 100 * SECOND, END_MS + 200 * SECOND]
        moments = [*times, *ends] if is_deleted else times
        is_issued = attempt(log, request, keys, blind, signer, check, plain, START_MS)
        for now_ms in moments:
            log.round(now_ms)
            is_issued = attempt(log, request, keys, blind, signer, check, plain, now_ms)
        assert is_issued or not is_deleted


def delete(directory: Path, topic: TopicConfig, numbers: frozenset[int]) -> None:
    """End what is open, and write tombstones that win by every strategy that is drawn."""
    with LogAppender(directory, LocalFiles(), topic=topic, leader_epoch=0) as log:
        for producer in range(PRODUCERS):
            log.append_marker(
                ControlType.ABORT,
                producer_id=FIRST_PRODUCER_ID + producer,
                producer_epoch=0,
                timestamp_ms=START_MS,
            )
        for number in sorted(numbers):
            log.append([NewRecord(NAMES[number], None, START_MS + 500 * SECOND)])
        log.roll()


def other_bytes(script: tuple[Operation, ...]) -> Iterator[bytes]:
    """Yield what records of a script have beside their keys."""
    for operation in script:
        if isinstance(operation, Append):
            for record in operation.records:
                yield record.value or b""
                for name, value in record.headers:
                    yield from (name, value or b"")


def attempt(
    log: Place,
    request: ErasureRequest,
    keys: ErasureKeys,
    blind: ErasureKeys,
    signer: Signer,
    check: SignatureCheck,
    plain: dict[int, bytes],
    now_ms: int,
) -> bool:
    """Ask for a certificate, by the keys and by their hashes alone; say whether there is one."""
    there = {number for number, key in plain.items() if log.has(key)}
    answers = [log.ask(each, now_ms) for each in (keys, blind)]
    # What a crash has left is told as a problem, and whose keys are in it nobody says.
    is_whole = not answers[0].problems
    told = {each.line for each in answers[0].there if each.line is not None}
    assert told == there if is_whole else told <= there
    hashes = {HASHER.hash_of(plain[number]) for number in told}
    assert hashes == {each.key_hash for each in answers[1].there}
    for answer in answers:
        try:
            data = make_certificate(
                request, answer, log.place(), ReceiptStanding(None), signer,
                nonce="00" * 16,
            )  # fmt: skip
        except RefusedError:
            assert there or not is_whole
        else:
            assert not there
            statement = read_certificate(data, check)
            assert sorted(request.keys) == statement["keys"]["hashes"]
    return not there and is_whole
