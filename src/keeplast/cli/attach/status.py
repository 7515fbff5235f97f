"""``keeplast attach status``: what brokers serve from the remote tier, and what they hide."""

from __future__ import annotations

from itertools import starmap
from typing import TYPE_CHECKING

from keeplast.cli.attach.options import ClusterOptions, ExactOptions, decision_log_there, fold
from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.parameters import Json
from keeplast.errors import RefusedError
from keeplast.model.escapes import printable

if TYPE_CHECKING:
    from keeplast.model.partition import TopicPartition
    from keeplast.model.reader_wait import ReaderWait


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
    (`tombstones.wait.for.groups`) are named, with how far each has read. With `--storage` it says
    which of the newest segments have a transaction index that lacks an abort.
    """
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.show.attach import savings_parts, status_parts, tombstone_lines
    from keeplast.cli.show.attached_picture import outlook_parts
    from keeplast.cli.show.output import print_result, screen_width
    from keeplast.clock import SystemClock
    from keeplast.cluster.facts import METADATA_TOPIC
    from keeplast.cluster.group_offsets import BrokerGroups
    from keeplast.service.attached_report import attached_report

    exactly.check()
    client, clock = cluster.connect(), SystemClock()
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
    savings, groups = None, BrokerGroups(client)
    if exactly.exact:
        from keeplast.cli.attach.exact import count_savings

        savings = count_savings(exactly, facts, ranges, folded.cache.partitions, groups)
    with decision_log_there(exactly.store, only_looks=True) as log:
        found = attached_report(
            facts, ranges, folded, log, None if exactly.storage is None else exactly.open_layout(),
            exactly.wanted.settings_of(facts.topics), groups, clock, cluster.bootstrap_server,
        )  # fmt: skip
    if not as_json:
        outlooks = list(found.outlooks.values())
        print_result(
            *status_parts(facts, [each.remote for each in found.partitions]),
            *outlook_parts(outlooks, clock.now_ms(), screen_width(), has_log=found.has_log),
            *([""] if outlooks else []), *starmap(_told_line, found.told_from.items()),
            *tombstone_lines(list(found.tombstones.values())),
            *(
                _wait_line(each.partition, each.readers)
                for each in found.partitions
                if each.readers is not None
            ),
        )  # fmt: skip
        if savings:
            print_result("", *savings_parts(savings))
    document = found.as_document()
    if savings is not None:
        document["savings"] = savings
    return DONE, document


def _wait_line(partition: TopicPartition, readers: ReaderWait) -> str:
    from keeplast.survey.wording import wait_words

    return f"{printable(str(partition))}: {wait_words(readers)}"


def _told_line(partition: TopicPartition, told_from: int) -> str:
    from keeplast.service.status_words import told_words

    return f"{printable(str(partition))}: {told_words(told_from)}"
