"""``keeplast attach verify``: judge independently what brokers serve of compacted topics."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.attach.options import ClusterOptions, Partitions, TierOptions, WantedOptions
from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import memory_size
from keeplast.cli.frame.parameters import MEMORY_DEFAULT, RUN, Json
from keeplast.errors import CompactionError, InvalidError

if TYPE_CHECKING:
    from keeplast.inspect.verdicts import VerificationReport

Strict = Annotated[
    bool, typer.Option("--strict", help="Exit with 1 also when a check cannot be judged.")
]
Memory = Annotated[
    str,
    typer.Option(
        "--memory", metavar="SIZE", rich_help_panel=RUN,
        help="What sorting keys may hold in memory; the rest lies in the system's temporary "
        "directory.",
    ),
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedVerifyOptions:
    """What ``attach verify`` takes."""

    cluster: ClusterOptions
    tier: TierOptions
    wanted: WantedOptions
    partitions: Partitions = ()
    memory: Memory = MEMORY_DEFAULT
    strict: Strict = False


@command(
    first=("bootstrap_server", "store", "storage"),
    example="keeplast attach verify --bootstrap-server localhost:9092 --store sqlite:///decisions.db"
    " --storage local:/mnt/tier --topic orders",
)
def verify(options: AttachedVerifyOptions, as_json: Json = False) -> Result:
    """Read partitions through brokers and from their objects, and judge what is there.

    Consumers read in both isolation levels, without a group; each object that brokers would read is
    read too, since their caches hide what is missing. Compared are both with each other, with the
    decision log, and what was replaced with what is served. Each check *holds*, is *broken* (exit
    1), or *cannot be judged*, with the reason. Nothing is changed.
    """
    from keeplast.cli.frame.exit_codes import CHECK_FAILED, DONE, error_exit_code
    from keeplast.cli.show.outcome import checks_line
    from keeplast.cli.show.output import print_result, say
    from keeplast.cli.show.verify import render
    from keeplast.errors import error_text
    from keeplast.model.verdict import Verdict

    code, reports = DONE, []
    documents: list[object] = []
    for name, found in _reports(options):
        if isinstance(found, Exception):
            code = max(code, error_exit_code(found))
            documents.append({"partition": name, "error": error_text(found)})
            say(f"{name}: {error_text(found)}", kind="error")
            continue
        reports.append(found)
        documents.append(found)
        if not as_json:
            print_result(*render(found))
    verdicts = {each.verdict for each in reports}
    if not as_json and (len(reports) > 1 or Verdict.UNJUDGED in verdicts):
        print_result("", checks_line(reports, is_strict=options.strict))
    if Verdict.BROKEN in verdicts or (options.strict and Verdict.UNJUDGED in verdicts):
        code = max(code, CHECK_FAILED)
    return code, {"partitions": documents}


def _reports(
    options: AttachedVerifyOptions,
) -> Iterator[tuple[str, VerificationReport | CompactionError | OSError]]:
    """Yield what is found of each partition, or why nothing could be."""
    from keeplast.attach.verification import AttachedVerifier, AttachedVerifySettings
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.model.redaction import shown_url
    from keeplast.tier.metadata.database import is_missing

    memory_bytes = memory_size(options.memory)
    store = options.tier.store
    if is_missing(store):
        raise InvalidError(f"there is no such decision log. --store={shown_url(store)}")
    client = options.cluster.connect()
    layout = options.tier.open_layout()
    facts = client.read_facts(options.cluster.topics)
    settings = options.wanted.settings_of(facts.topics)
    chosen = [
        (topic, number)
        for topic in facts.topics
        for number in range(topic.partition_count)
        if not options.partitions or number in options.partitions
    ]
    if not chosen:
        raise InvalidError(
            "no such partition of a tiered topic; correct --topic and --partition. "
            f"partitions={list(options.partitions)} topics={[each.name for each in facts.topics]}"
        )
    with options.tier.open_log() as log:
        for topic, number in chosen:
            name = f"{topic.name}-{number}"
            with ProgressEvents(f"reading {name}") as events:
                verifier = AttachedVerifier(client, log, layout, events.progressed, events.planned)
                wanted = AttachedVerifySettings(
                    topic=settings.topic_config(topic.name), memory_bytes=memory_bytes
                )
                try:
                    found: VerificationReport | CompactionError | OSError = verifier.verify(
                        topic, number, wanted
                    )
                except (CompactionError, OSError) as error:
                    found = error
            yield name, found
