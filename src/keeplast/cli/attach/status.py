"""``keeplast attach status``: what brokers serve from the remote tier, and what they hide."""

from __future__ import annotations

from keeplast.cli.attach.options import ClusterOptions, ExactOptions, fold
from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.parameters import Json
from keeplast.errors import RefusedError


@command(
    first=("bootstrap_server", "topics", "command_config"),
    example="keeplast attach status --bootstrap-server localhost:9092",
)
def status(cluster: ClusterOptions, exactly: ExactOptions, as_json: Json = False) -> Result:
    """Show each tiered partition: segments that are served and hidden, and what waits.

    Reads the metadata topic as brokers do, from its beginning; changes nothing. With `--exact` it
    reads what a round would, too, and says how many bytes that would save now.
    """
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.show.attach import savings_parts, status_parts
    from keeplast.cli.show.output import print_result
    from keeplast.cluster.facts import METADATA_TOPIC
    from keeplast.cluster.status import name_of, partition_status
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
    savings = None
    if exactly.exact:
        from keeplast.cli.attach.exact import count_savings

        savings = count_savings(exactly, facts, ranges, folded.cache.partitions)
    if not as_json:
        print_result(*status_parts(facts, found))
        if savings:
            print_result("", *savings_parts(savings))
    ends = {each: held.end for each, held in sorted(folded.ranges.items())}
    document = attached_document(facts.cluster_id, ends, found)
    return DONE, document if savings is None else {**document, "savings": savings}
