"""Brokers serve what was decided, from one batch of their metadata topic; no reader notices.

Outputs are copies of their sources, byte for byte or one behind the other, so every consumer must
read the same before, after, when the sources are gone, and after restarts. Ids in the names are
those of the scenarios as they were tried by hand (attach.md).
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from msgspec.structs import replace
from typer.testing import CliRunner

from keeplast.attach.held.metadata_view import AttachTerms
from keeplast.attach.held.publication import Publisher, claim
from keeplast.attach.rules.swap import Swap, batch_of, merged_epochs, updates
from keeplast.attach.upkeep.replaced_segments import repair
from keeplast.cli.main import app
from keeplast.clock import SystemClock
from keeplast.cluster import client as client_module
from keeplast.cluster.client import ClusterClient
from keeplast.cluster.late_copies import again
from keeplast.cluster.layouts.layout import AuxiliaryFile, RemoteLayout
from keeplast.cluster.layouts.open import open_layout
from keeplast.cluster.live_cluster import BATCH_BYTES_MAX, METADATA_TOPIC, RECORD_BYTES
from keeplast.cluster.metadata_cache import name_of, partition_status
from keeplast.cluster.metadata_log import fold_metadata
from keeplast.errors import (
    CommitUnknownError,
    ConflictError,
    FencedError,
    InvalidError,
    RefusedError,
    UnavailableError,
)
from keeplast.format import offset_index, time_index
from keeplast.format.batch import decode_header
from keeplast.format.identifier import encode_id
from keeplast.format.remote_log_metadata import (
    EpochStart,
    RemoteLogEvent,
    RemoteLogSegment,
    RemoteLogSegmentId,
    RemoteLogSegmentState,
    encode,
)
from keeplast.log.indexes import IndexBuilder
from keeplast.tier.metadata.database import open_database
from keeplast.tier.metadata.decisions import DecisionLog
from keeplast.tier.state.attached import Decision, mark_of
from tests.kafka.broker import Broker
from tests.kafka.test_attach import create, fill, objects
from tests.support import called
from tests.support.checked_place import findings
from tests.support.live_call import live_call
from tests.support.waiting import wait_until

pytestmark = pytest.mark.kafka

TOPICS = ("swapped", "left", "rivals", "settings", "late")
RECORDS = 2000
TERMS = AttachTerms()
Read = tuple[int, bytes | None, bytes | None, int]


@pytest.fixture(scope="module")
def broker(broker: Broker) -> Broker:
    for topic in TOPICS:
        create(broker, topic, 1)
        fill(broker, topic, 0, RECORDS)
    for topic in TOPICS:
        wait_until_remote(broker, topic)
    return broker


@pytest.fixture
def log(broker: Broker) -> Iterator[DecisionLog]:
    with closing(DecisionLog(open_database(store_of(broker)), SystemClock())) as made:
        yield made


def store_of(broker: Broker) -> str:
    return f"sqlite:///{broker.root / 'decisions.db'}"


def layout_of(broker: Broker) -> RemoteLayout:
    return open_layout(f"local:{broker.root / 'remote'}")


def wait_until_remote(broker: Broker, topic: str) -> None:
    """Wait until nothing but the active segment is local."""
    client = ClusterClient(broker.address)

    def is_remote() -> bool:
        facts = client.read_facts([topic])
        if facts.metadata_topic is None:
            return False
        metadata = facts.metadata_topic
        folded = fold_metadata(client, metadata, range(metadata.partition_count))
        name = name_of(facts.topics[0], 0)
        (range_,) = client.read_ranges(facts.topics[0])
        found = partition_status(facts.topics[0], 0, range_, folded.cache.partitions.get(name))
        local = list((broker.data / f"{topic}-0").glob("*.log"))
        is_ended = not found.copying.count and found.served.count > 3
        return is_ended and len(local) == 1 and found.remote_end == int(local[0].stem) - 1

    wait_until(is_remote, words=lambda: "\n".join(broker.lines("ERROR", "WARN")))


def claimed(broker: Broker, log: DecisionLog, topic: str, **options: Any) -> Publisher:
    client = ClusterClient(broker.address)
    facts = client.read_facts([topic])
    return claim(
        client, log, layout_of(broker), name_of(facts.topics[0], 0), facts.cluster_id, TERMS,
        **options,
    )  # fmt: skip


def sources_of(publisher: Publisher) -> list[RemoteLogSegment]:
    found = {each.segment.id: each.segment for each in publisher.look().cache.served()}
    return sorted(found.values(), key=lambda each: each.start_offset)


def log_of(publisher: Publisher, segment: RemoteLogSegment) -> bytes:
    reader = publisher.layout.open(segment)
    return bytes(reader.read_log(0, reader.log_bytes))


def auxiliary_files(
    publisher: Publisher, start: int, data: bytes, last: RemoteLogSegment
) -> dict[AuxiliaryFile, bytes]:
    """Return the files of a log that begins at ``start`` and ends in ``last``."""
    builder, position, rows = IndexBuilder(start, 1024), 0, []
    while position < len(data):
        header = decode_header(data, position)
        rows.append((header.size_bytes, header.last_offset, header.max_timestamp))
        position += header.size_bytes
    builder.add(np.array(rows, np.int64))
    offsets, times = builder.finish()
    reader = publisher.layout.open(last)
    auxiliary = {
        kind: reader.read_auxiliary(kind) or b""
        for kind in (AuxiliaryFile.SNAPSHOT, AuxiliaryFile.LEADER_EPOCHS)
    }
    return auxiliary | {
        AuxiliaryFile.OFFSET_INDEX: offset_index.encode(offsets),
        AuxiliaryFile.TIME_INDEX: time_index.encode(times),
    }


def begin_copy(
    publisher: Publisher, first: RemoteLogSegment, second: RemoteLogSegment
) -> RemoteLogSegment:
    """Announce and store, as a leader that rolled elsewhere, from within one to within the next."""
    log, other = log_of(publisher, first), log_of(publisher, second)
    data = log[decode_header(log, 0).size_bytes :] + other[: decode_header(other, 0).size_bytes]
    start, end = decode_header(data, 0).base_offset, decode_header(other, 0).last_offset
    assert first.start_offset < start
    assert second.start_offset <= end < second.end_offset
    copy = replace(
        first, id=RemoteLogSegmentId(first.id.partition, b"late" + start.to_bytes(12, "big")),
        broker_id=1, start_offset=start, end_offset=end, size_bytes=len(data),
        epochs=tuple(dataclasses.replace(each, start_offset=start) for each in first.epochs),
        event_timestamp_ms=SystemClock().now_ms(), custom_metadata=None,
        state=RemoteLogSegmentState.COPY_SEGMENT_STARTED, tags=(),
    )  # fmt: skip
    announce(publisher, copy)
    writer = publisher.layout.create_log(copy.id, start, second)
    writer.write(data)
    custom = publisher.layout.complete(
        copy, writer.close(), auxiliary_files(publisher, start, data, second), second
    )  # fmt: skip
    return replace(copy, custom_metadata=custom)


def finish_copy(publisher: Publisher, copy: RemoteLogSegment) -> None:
    """Say of a copy that it is whole, in the name of the broker that began it."""
    announce(publisher, again(copy))


def announce(publisher: Publisher, *events: RemoteLogEvent) -> None:
    view = publisher.look()
    publisher.cluster.append(view.metadata_topic, view.metadata_partition, events)


def write_output(publisher: Publisher, sources: Sequence[RemoteLogSegment]) -> RemoteLogSegment:
    """Register, write, announce and complete the sources' bytes, one behind the other."""
    layout, last = publisher.layout, sources[-1]
    data = b"".join(log_of(publisher, each) for each in sources)
    start = sources[0].start_offset
    auxiliary = auxiliary_files(publisher, start, data, last)
    number = len(publisher.log.own_segments(publisher.held))
    name = RemoteLogSegmentId(
        last.id.partition, publisher.held.row_id.to_bytes(8, "big") + number.to_bytes(8, "big")
    )
    publisher.register([(name.segment_id, start)])
    writer = layout.create_log(name, start, last)
    writer.write(data)
    written = writer.close()
    announced = publisher.announce(
        replace(
            last, id=name, start_offset=start, epochs=merged_epochs(sources),
            size_bytes=len(data), max_timestamp_ms=max(each.max_timestamp_ms for each in sources),
        )
    )  # fmt: skip
    custom = layout.complete(announced, written, auxiliary, last)
    return replace(announced, custom_metadata=custom)


def swap_of(publisher: Publisher, *groups: Sequence[RemoteLogSegment]) -> Swap:
    outputs = tuple(write_output(publisher, each) for each in groups)
    sources = tuple(each for group in groups for each in group)
    return Swap(publisher.name.partition, sources, outputs, sources[-1].end_offset + 1)


def read(broker: Broker, topic: str, *, is_starting: bool = False) -> list[Read]:
    """Return all that a consumer finds from the beginning; it fails at any reset or error.

    A broker that ``is_starting`` answers UNKNOWN until it has read its metadata topic.
    """
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address, "group.id": "judge", "enable.auto.commit": False,
            "auto.offset.reset": "error", "enable.partition.eof": True,
        }
    )  # fmt: skip
    found: list[Read] = []
    consumer.assign([TopicPartition(topic, 0, 0)])

    def is_read() -> bool:
        for message in consumer.consume(1000, 0.5):
            error = message.error()
            if error is None:
                raw: Any = message
                found.append((raw.offset(), raw.key(), raw.value(), raw.timestamp()[1]))
            elif is_starting and "UNKNOWN" == error.name():
                found.clear()
                consumer.assign([TopicPartition(topic, 0, 0)])
                return False
            else:
                assert "_PARTITION_EOF" == error.name(), error
                return True
        return False

    try:
        wait_until(is_read, words=lambda: f"{len(found)} records of {topic}")
    finally:
        consumer.close()
    return found


def end_of(publisher: Publisher, partition: int) -> int:
    """Return where a metadata partition ends, once it has a leader again."""
    found: list[int] = []

    def has_leader() -> bool:
        try:
            found.append(publisher.cluster.read_end(partition).offset)
        except UnavailableError:
            return False
        return True

    wait_until(has_leader, words=lambda: "no leader")
    return found[-1]


def command(broker: Broker, name: str, *arguments: str, expected: int = 0) -> dict[str, Any]:
    """Return what a command over the cluster says; each is a claim of its own."""
    call = live_call(broker.address, name, "--decisions", store_of(broker), "--json", *arguments)
    done = called.run(*call, code=expected)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def checked(broker: Broker, topic: str) -> dict[str, Any]:
    """Return what ``keeplast place check`` says of a topic."""
    call = ["place", "check", f"kafka://{broker.address}", "--decisions", store_of(broker)]
    done = called.run(*call, "--topic", topic, "--json", code=0)
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def storage(broker: Broker) -> tuple[str, str]:
    return "--storage", f"local:{broker.root / 'remote'}"


def records_of_batch(broker: Broker, decision: Decision) -> int:
    """Return how many records the broker's own log has in the batch that begins a swap."""
    assert decision.first_offset is not None
    return records_at(broker, decision.metadata_partition, decision.first_offset)


def records_at(broker: Broker, partition: int, offset: int) -> int:
    """Return how many records the batch has that begins at an offset of the metadata topic."""
    directory = broker.data / f"{METADATA_TOPIC}-{partition}"
    for path in sorted(directory.glob("*.log")):
        data, position = path.read_bytes(), 0
        while position + 61 <= len(data):
            header = decode_header(data, position)
            if header.base_offset == offset:
                return header.count
            position += header.size_bytes
    raise AssertionError(f"no batch at {offset}")


def test_swaps_are_read_alike_before_after_collected_and_restarted(
    broker: Broker, log: DecisionLog
) -> None:
    """P2, P5, P8, C3, R-14: one to one and two to one, kill -9, collection, a clean restart."""
    expected = read(broker, "swapped")
    assert RECORDS == len(expected)
    publisher = claimed(broker, log, "swapped")
    a, b, c, *_ = sources_of(publisher)
    decision = publisher.decide_and_publish(swap_of(publisher, [a], [b, c]))
    assert 5 == records_of_batch(broker, decision)
    assert expected == read(broker, "swapped")
    publisher.close()

    broker.kill()
    broker.start()
    assert expected == read(broker, "swapped", is_starting=True)
    answer = command(broker, "collect", *storage(broker), "--topic", "swapped")
    (row,) = answer["partitions"]
    assert (0, 1) == (row["collected_segments"], row["waiting"])
    answer = command(broker, "collect", *storage(broker), "--topic", "swapped", "--grace-ms", "0")
    (row,) = answer["partitions"]
    assert (3, 0, 3) == (row["collected_segments"], row["waiting"], row["epoch"])
    checked(broker, "swapped")
    there = set(objects(broker, "swapped", 0))
    assert not there & {each.id.segment_id for each in (a, b, c)}
    assert {each.id.segment_id for each in decision.outputs} <= there
    assert expected == read(broker, "swapped")

    broker.stop()
    broker.start()
    assert expected == read(broker, "swapped", is_starting=True)


def test_a_second_swap_of_another_epoch_takes_the_first_ones_place(
    broker: Broker, log: DecisionLog
) -> None:
    """P6, Z5: the mark of the epoch is another one, and the late batch of the first is dropped."""
    expected = read(broker, "swapped")
    publisher = claimed(broker, log, "swapped")
    assert publisher.epoch > 3
    merged = sources_of(publisher)[:3]
    assert merged[0].broker_id == mark_of(1)
    publisher.decide_and_publish(swap_of(publisher, merged))
    first = publisher.log.decisions(publisher.held)[0]
    facts = publisher.cluster.read_facts(["swapped"])
    assert facts.metadata_topic is not None
    publisher.cluster.append(facts.metadata_topic, first.metadata_partition, batch_of(first).events)
    assert merged[-1].end_offset == sources_of(publisher)[0].end_offset
    publisher.close()
    command(broker, "collect", *storage(broker), "--topic", "swapped", "--grace-ms", "0")
    assert expected == read(broker, "swapped")


def test_a_copy_that_a_broker_finishes_late_leaves_no_hole_or_one_that_is_closed(
    broker: Broker, log: DecisionLog
) -> None:
    """R-4, AT-10: begun before the round, nothing goes past it; begun behind it, it is passed."""
    expected = read(broker, "late")
    publisher = claimed(broker, log, "late")
    a, b, c, d, *_ = sources_of(publisher)
    begun = begin_copy(publisher, a, b)
    together = swap_of(publisher, [a, b])
    with pytest.raises(ConflictError, match="begun a copy that would leave a hole"):
        publisher.decide_and_publish(together)
    publisher.decide_and_publish(swap_of(publisher, [a], [b]))
    finish_copy(publisher, begun)
    assert begun.id in {each.id for each in sources_of(publisher)}
    assert expected == read(broker, "late")

    publisher.decide_and_publish(swap_of(publisher, [c, d]))
    late = begin_copy(publisher, c, d)
    finish_copy(publisher, late)
    hole = late.end_offset + 1
    assert [(hole, d.end_offset)] == publisher.look().cache.holes(0)
    wait_until(lambda: not is_served(broker, "late", hole), words=lambda: f"{hole} is served")
    assert is_served(broker, "late", late.end_offset)
    publisher.close()
    found = findings(checked(broker, "late"))
    assert ["late-copy"] == [each["name"] for each in found if each["topic"]]
    command(broker, "collect", *storage(broker), "--topic", "late", "--grace-ms", "0", expected=5)

    publisher = claimed(broker, log, "late")
    (longer,) = [e for e in sources_of(publisher) if e.start_offset == c.start_offset]
    output = write_output(publisher, [longer])
    (known,) = [e for e in sources_of(publisher) if e.id == late.id]
    at = publisher.name.partition
    publisher.decide_and_publish(Swap(at, (longer, known), (output,), output.end_offset + 1))
    assert [] == publisher.look().cache.holes(0)
    publisher.close()
    assert expected == read(broker, "late")
    command(broker, "collect", *storage(broker), "--topic", "late", "--grace-ms", "0")
    assert late.id.segment_id not in objects(broker, "late", 0)
    assert expected == read(broker, "late")
    broker.stop()
    broker.start()
    assert expected == read(broker, "late", is_starting=True)


def is_served(broker: Broker, topic: str, offset: int) -> bool:
    """Say whether a consumer that begins at ``offset`` is given it, and not reset."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.address, "group.id": "prober", "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )  # fmt: skip
    answers: list[bool] = []
    consumer.assign([TopicPartition(topic, 0, offset)])

    def is_answered() -> bool:
        for message in consumer.consume(1, 0.5):
            error = message.error()
            # Of an offset out of range librdkafka reports as of a reset that is not allowed.
            assert error is None or "_AUTO_OFFSET_RESET" == error.name(), error
            answers.append(error is None)
        return bool(answers)

    try:
        wait_until(is_answered, words=lambda: f"no answer at {offset}")
    finally:
        consumer.close()
    return answers[0]


def test_undecided_outputs_are_never_seen_and_taken_back(broker: Broker, log: DecisionLog) -> None:
    """C1, C2: announced and written, and nothing more."""
    expected, before = read(broker, "left"), set(objects(broker, "left", 0))
    publisher = claimed(broker, log, "left")
    left = write_output(publisher, sources_of(publisher)[:2])
    assert left.id.segment_id in objects(broker, "left", 0)
    assert expected == read(broker, "left")
    publisher.close()
    answer = command(broker, "repair", *storage(broker), "--topic", "left")
    assert [1] == [each["discarded"] for each in answer["partitions"]]
    assert before == set(objects(broker, "left", 0))
    assert expected == read(broker, "left")
    again = claimed(broker, log, "left")
    assert left.id not in {each.id for each in again.look().cache.segments}
    again.close()


def test_the_largest_batch_that_is_sent_is_one_for_brokers_too(
    broker: Broker, log: DecisionLog
) -> None:
    """AT-33: as large as is allowed; one record more is not sent at all."""
    expected = read(broker, "left")
    publisher = claimed(broker, log, "left")
    view = publisher.look()
    metadata, at, size = view.metadata_topic, view.metadata_partition, 0
    newest = sources_of(publisher)[-1]
    events: list[RemoteLogSegment] = []
    while size <= BATCH_BYTES_MAX:
        # As a broker's that began to copy something, of many leader epochs.
        name = RemoteLogSegmentId(newest.id.partition, b"largest!" + len(events).to_bytes(8, "big"))
        epochs = tuple(EpochStart(epoch, 10**9 + epoch) for epoch in range(60))
        events.append(
            replace(
                newest, id=name, start_offset=10**9, end_offset=10**9 + 60, epochs=epochs,
                state=RemoteLogSegmentState.COPY_SEGMENT_STARTED,
            )
        )  # fmt: skip
        size += len(encode(events[-1])) + RECORD_BYTES
    with pytest.raises(InvalidError, match="take fewer segments"):
        publisher.cluster.append(metadata, at, events)
    assert view.end == publisher.cluster.read_end(at)
    lies = publisher.cluster.append(metadata, at, events[:-1])
    assert (view.end.offset, len(events) - 1) == (lies.start, lies.end - lies.start)
    assert len(events) - 1 == records_at(broker, at, lies.start)
    for state in (
        RemoteLogSegmentState.DELETE_SEGMENT_STARTED, RemoteLogSegmentState.DELETE_SEGMENT_FINISHED,
    ):  # fmt: skip
        publisher.cluster.append(metadata, at, updates(events[:-1], state, 1, 1))
    assert expected == read(broker, "left")
    publisher.close()


def test_a_decision_that_was_not_published_is_published_by_the_next_process(
    broker: Broker, log: DecisionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AT-4: the cluster is away when the batch is sent, and back when somebody looks."""
    expected = read(broker, "left")
    publisher = claimed(broker, log, "left")
    swap = swap_of(publisher, sources_of(publisher)[:2])
    sent = ClusterClient.append

    monkeypatch.setattr(
        ClusterClient, "append", Mock(side_effect=CommitUnknownError("the process ends here"))
    )
    with pytest.raises(CommitUnknownError):
        publisher.decide_and_publish(swap)
    monkeypatch.setattr(ClusterClient, "append", sent)
    assert expected == read(broker, "left")
    publisher.close()
    again = claimed(broker, log, "left")
    assert 1 == repair(again).published
    assert swap.outputs[0].id == sources_of(again)[0].id
    again.close()
    assert expected == read(broker, "left")
    command(broker, "collect", *storage(broker), "--topic", "left", "--grace-ms", "0")
    assert expected == read(broker, "left")


def test_of_two_compactors_one_alone_decides(broker: Broker, log: DecisionLog) -> None:
    """Z1, Z2, Z3: the other is fenced before anything is decided."""
    first = claimed(broker, log, "rivals")
    swap = swap_of(first, sources_of(first)[:1])
    rival = DecisionLog(open_database(store_of(broker)), SystemClock())
    second = claimed(broker, rival, "rivals", takes_over=True)
    with pytest.raises(FencedError):
        first.decide_and_publish(swap)
    assert 1 == repair(second).discarded
    second.decide_and_publish(swap_of(second, sources_of(second)[:2]))
    other = DecisionLog(
        open_database(f"sqlite:///{broker.root / 'others.db'}"), SystemClock()
    )  # fmt: skip
    with pytest.raises(RefusedError):
        claimed(broker, other, "rivals", takes_over=True)
    second.close()
    for each in (rival, other):
        each.close()


def test_a_pause_holds_until_it_is_taken_back_and_a_partition_is_detached(
    broker: Broker, log: DecisionLog
) -> None:
    expected = read(broker, "settings")
    publisher = claimed(broker, log, "settings")
    swap = swap_of(publisher, sources_of(publisher)[:2])
    publisher.decide_and_publish(swap)
    publisher.close()
    command(broker, "pause", "--topic", "settings")
    options = (*storage(broker), "--topic", "settings", "--grace-ms", "0")
    answer = command(broker, "collect", *options, expected=5)
    assert "paused" in answer["partitions"][0]["error"]["message"]
    command(broker, "pause", "--resume", "--topic", "settings")
    answer = command(broker, "detach", *options)
    assert answer["partitions"][0]["is_detached"]
    name = encode_id(publisher.name.partition.topic_id)
    assert not list((broker.root / "remote" / ".keeplast").glob(f"owner-*{name}*"))
    assert expected == read(broker, "settings")
    command(broker, "detach", *options, expected=2)


def test_a_batch_to_a_cluster_that_is_away_is_unknown_and_not_there_later(
    broker: Broker, log: DecisionLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AT-31: an announcement without an answer is not repeated; its id is abandoned."""
    publisher = claimed(broker, log, "rivals", takes_over=True)
    facts = publisher.cluster.read_facts(["rivals"])
    assert facts.metadata_topic is not None
    decision = publisher.log.decisions(publisher.held)[-1]
    before = publisher.cluster.read_end(decision.metadata_partition).offset
    monkeypatch.setitem(client_module._PRODUCER, "message.timeout.ms", 1500)
    broker.stop()
    with pytest.raises(CommitUnknownError):
        publisher.cluster.append(
            facts.metadata_topic, decision.metadata_partition, batch_of(decision).events
        )
    broker.start()
    assert before == end_of(publisher, decision.metadata_partition)
    with pytest.raises(ConflictError):
        publisher.decide_and_publish(
            Swap(publisher.name.partition, decision.sources, decision.outputs, decision.cleaned_to)
        )
    publisher.close()


def test_a_decision_log_that_is_lost_is_made_again_from_what_brokers_read(
    broker: Broker, log: DecisionLog
) -> None:
    """AT-30: the old one is refused from then on; a swap that waited goes after a new grace."""
    expected = read(broker, "left")
    publisher = claimed(broker, log, "left")
    decision = publisher.decide_and_publish(swap_of(publisher, sources_of(publisher)[:2]))
    left = write_output(publisher, sources_of(publisher)[1:2])
    publisher.close()
    store = f"sqlite:///{broker.root / 'again.db'}"
    options = ("--topic", "left", "--decisions", store, *storage(broker))
    answer = command(broker, "collect", *options, expected=2)
    answer = command(broker, "repair", *options, "--rebuild", expected=4)
    assert "a moment ago" in answer["partitions"][0]["error"]["message"]
    answer = command(broker, "repair", *options, "--rebuild", "--grace-ms", "0")
    (row,) = answer["partitions"]
    assert (row["uncollected"], row["discarded"]) == (1, 1)
    assert row["rebuilt_decisions"] == len(log.decisions(publisher.held))
    assert expected == read(broker, "left")
    answer = command(broker, "collect", *storage(broker), "--topic", "left", expected=4)
    assert "another decision log owns" in answer["partitions"][0]["error"]["message"]
    answer = command(broker, "collect", *options, "--grace-ms", "0")
    assert 2 == answer["partitions"][0]["collected_segments"]
    there = set(objects(broker, "left", 0))
    gone = {each.id.segment_id for each in (*decision.sources, left)}
    assert not there & gone
    assert expected == read(broker, "left")


def test_a_look_that_goes_on_from_a_kept_fold_says_what_brokers_know(
    broker: Broker, log: DecisionLog
) -> None:
    publisher = claimed(broker, log, "swapped")
    view = publisher.look()
    made = publisher.folds.find(publisher.name.cluster_id, view.metadata_partition)
    assert made is not None
    assert made.point.offset == view.end.offset
    assert made.point.record_epoch >= 0
    cold = fold_metadata(publisher.cluster, view.metadata_topic, [view.metadata_partition])
    assert cold.cache.partitions[publisher.name.partition].state() == view.cache.state()
    publisher.close()


def test_objects_of_a_deleted_topic_are_reported_and_removed(
    broker: Broker, log: DecisionLog
) -> None:
    """AT-26: brokers remove what they knew of; asked by name they say that there is none."""
    publisher = claimed(broker, log, "rivals", takes_over=True)
    repair(publisher)
    partition, layout = publisher.name.partition, publisher.layout
    name = RemoteLogSegmentId(partition, bytes(15) + b"\x07")
    publisher.register([(name.segment_id, 0)])
    writer = layout.create_log(name, 0, sources_of(publisher)[-1])
    writer.write(b"no reader sees this")
    writer.close()
    publisher.close()
    client = ClusterClient(broker.address)
    assert partition.topic_id == client.find_topic_id("rivals")
    admin = AdminClient({"bootstrap.servers": broker.address})
    admin.delete_topics(["rivals"])["rivals"].result()
    options = (*storage(broker), "--topic", "rivals", "--grace-ms", "0", "--take-over")
    wait_until(lambda: client.find_topic_id("rivals") is None, words=lambda: "the topic stays")

    def let_go() -> bool:
        # Until brokers have said of each segment that it goes, it is refused.
        call = live_call(
            broker.address, "collect", "--decisions", store_of(broker), *options,
            "--orphans", "list",
        )  # fmt: skip
        return 0 == CliRunner().invoke(app, call).exit_code

    wait_until(let_go, words=lambda: "\n".join(broker.lines("ERROR", "WARN")))
    assert name.segment_id in {each.segment_id for each in layout.list(partition)}
    answer = command(broker, "collect", *options, "--orphans", "collect")
    (row,) = answer["partitions"]
    assert (row["collected_segments"] >= 1, row["unknown_segments"]) == (True, 0)
    assert row["is_detached"]
    assert [] == list(layout.list(partition))
    assert client.read_topic_ids({"rivals"}) == {}


def test_a_topic_that_is_made_again_is_another_one(broker: Broker, log: DecisionLog) -> None:
    """AT-27: the name is all that it has of the one that was deleted."""
    cluster_id = ClusterClient(broker.address).read_cluster_id()
    before = log.partitions(cluster_id)
    create(broker, "rivals", 1)
    fill(broker, "rivals", 0, RECORDS)
    wait_until_remote(broker, "rivals")
    expected = read(broker, "rivals")
    publisher = claimed(broker, log, "rivals")
    assert publisher.name not in {each.name for each in before}
    assert 1 == publisher.epoch
    publisher.decide_and_publish(swap_of(publisher, sources_of(publisher)[:2]))
    publisher.close()
    assert expected == read(broker, "rivals")
    options = (*storage(broker), "--topic", "rivals", "--grace-ms", "0")
    rows = command(broker, "collect", *options)["partitions"]
    assert 2 == sum(each.get("collected_segments", 0) for each in rows)
    assert expected == read(broker, "rivals")
    assert set(before) < set(log.partitions(cluster_id))
