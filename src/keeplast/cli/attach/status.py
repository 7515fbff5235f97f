"""``keeplast attach status``: what brokers serve from the remote tier, and what they hide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Any

from keeplast.cli.attach.options import ClusterOptions, ExactOptions, decision_log_there, fold
from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.parameters import Json
from keeplast.errors import RefusedError
from keeplast.model.escapes import printable

if TYPE_CHECKING:
    from keeplast.cluster.facts import ClusterFacts, OffsetRange
    from keeplast.cluster.metadata_cache import ClusterCache
    from keeplast.model.partition import TopicPartition
    from keeplast.model.reader_wait import ReaderWait
    from keeplast.service.tombstone_dates import PartitionTombstones


@command(
    first=("bootstrap_server", "topics", "command_config"),
    example="keeplast attach status --bootstrap-server localhost:9092",
)
def status(cluster: ClusterOptions, exactly: ExactOptions, as_json: Json = False) -> Result:
    """Show each tiered partition: segments that are served and hidden, and what waits.

    Reads the metadata topic as brokers do, from its beginning; changes nothing. A picture shows
    what is clean, dirty and not to be taken, and what brokers alone have; below it are the dirty
    ratio, the next round, and by when old values are gone. With `--exact` it reads what a round
    would, too, and says how many bytes that would save now. With `--store` it knows what is clean,
    and says as of which offsets `keeplast export` can tell earlier states, and with which rounds
    tombstones and markers go, or why they stay. Consumer groups that those wait for
    (`tombstones.wait.for.groups`) are named, with how far each has read.
    """
    from keeplast.attach.collection import GRACE_MS_DEFAULT
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.show.attach import savings_parts, status_parts, tombstone_lines
    from keeplast.cli.show.attached_picture import outlook_parts
    from keeplast.cli.show.output import print_result, screen_width
    from keeplast.clock import SystemClock
    from keeplast.cluster.facts import METADATA_TOPIC
    from keeplast.cluster.group_offsets import BrokerGroups
    from keeplast.cluster.status import name_of, partition_status
    from keeplast.service.attached_outlook import find_outlooks
    from keeplast.service.attached_status import waits_of
    from keeplast.service.documents import attached_document

    exactly.check()
    client = cluster.connect()
    facts = client.read_facts(cluster.topics)
    if facts.metadata_topic is None:
        raise RefusedError(
            f"nothing was ever copied to a remote tier here: there is no {METADATA_TOPIC}. "
            f"bootstrap_server={cluster.bootstrap_server}"
        )
    # Ends last: what was announced by then lies below the log's end.
    folded = fold(client, facts, facts.metadata_topic)
    folded.require_sound()
    ranges = {topic.name: client.read_ranges(topic) for topic in facts.topics}
    found = [
        partition_status(topic, number, log, folded.cache.partitions.get(name_of(topic, number)))
        for topic in facts.topics
        for number, log in enumerate(ranges[topic.name])
    ]
    savings, groups = None, BrokerGroups(client)
    if exactly.exact:
        from keeplast.cli.attach.exact import count_savings

        savings = count_savings(exactly, facts, ranges, folded.cache.partitions, groups)
    told, tombstones = _told(exactly, facts, ranges, folded.cache)
    settings, now_ms = exactly.wanted.settings_of(facts.topics), SystemClock().now_ms()
    waits = waits_of(groups, facts, settings, SystemClock())
    with decision_log_there(exactly.store) as log:
        outlooks = find_outlooks(
            facts, ranges, folded.cache, log,
            None if exactly.storage is None else exactly.open_layout(), settings,
            GRACE_MS_DEFAULT, now_ms, cluster.bootstrap_server,
        )  # fmt: skip
    if not as_json:
        has_log = exactly.store is not None
        print_result(
            *status_parts(facts, found),
            *outlook_parts(outlooks, now_ms, screen_width(), has_log=has_log),
            *([""] if outlooks else []), *map(_told_line, told), *tombstone_lines(tombstones),
            *starmap(_wait_line, waits.items()),
        )  # fmt: skip
        if savings:
            print_result("", *savings_parts(savings))
    ends = {each: held.end for each, held in sorted(folded.ranges.items())}
    document = attached_document(facts.cluster_id, ends, found, waits)
    document["outlook"] = [each.as_document() for each in outlooks]
    if savings is not None:
        document["savings"] = savings
    if exactly.store is not None:
        document |= {"told_from": told, "tombstones": tombstones}
    return DONE, document


def _told(
    options: ExactOptions, facts: ClusterFacts, ranges: Mapping[str, Sequence[OffsetRange]],
    known: ClusterCache,
) -> tuple[list[dict[str, Any]], list[PartitionTombstones]]:  # fmt: skip
    """Return from which offset on states can be told, and when tombstones go; by a decision log.

    Nothing without one.
    """
    from keeplast.attach.collection import GRACE_MS_DEFAULT
    from keeplast.attach.shown_logs import told_from
    from keeplast.cluster.metadata_cache import PartitionCache
    from keeplast.cluster.status import name_of
    from keeplast.service.tombstone_dates import find_tombstones
    from keeplast.tier.state.attached import AttachedName

    found: list[dict[str, Any]] = []
    with decision_log_there(options.store) as log:
        if log is None:
            return [], []
        for topic in facts.topics:
            for number, ends in enumerate(ranges[topic.name]):
                name = name_of(topic, number)
                held = log.find(AttachedName(facts.cluster_id, name))
                told = told_from(
                    known.partitions.get(name, PartitionCache()), log, held, log_start=ends.start
                )
                found.append({"topic": topic.name, "partition": number, "told_from": told})
        chosen = [(topic, n) for topic in facts.topics for n in range(len(ranges[topic.name]))]
        settings = options.wanted.settings_of(facts.topics)
        return found, find_tombstones(
            facts, ranges, known.partitions, log, settings, GRACE_MS_DEFAULT, chosen
        )


def _wait_line(partition: TopicPartition, readers: ReaderWait) -> str:
    from keeplast.survey.wording import wait_words

    return f"{printable(str(partition))}: {wait_words(readers)}"


def _told_line(told: Mapping[str, Any]) -> str:
    name = printable(f"{told['topic']}-{told['partition']}")
    return f"{name}: its earlier state can be exported as of offset {told['told_from']} or later"
