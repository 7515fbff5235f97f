"""``keeplast tier status`` and ``verify``: what a store holds, and whether that is so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame import options
from keeplast.cli.frame.guard import run_guarded
from keeplast.cli.show.output import JSON_VERSION
from keeplast.cli.tier import options as shared
from keeplast.cli.tier.options import Result, store_call

if TYPE_CHECKING:
    from keeplast.model.partition import TopicPartition

Local = Annotated[
    Path | None,
    typer.Option(
        "--local", metavar="DIR", show_default=False,
        help="The data directory of a host: its local logs are shown too. Only read.",
    ),
]  # fmt: skip
ErasedBy = Annotated[
    bool,
    typer.Option(
        "--erased-by",
        help="Say too by when what is overwritten or deleted now is gone from the objects, while "
        "keeplast tier run goes and its rounds succeed. Reads what segments say of tombstones.",
    ),
]  # fmt: skip


def status(
    store: shared.Store,
    topic: options.Topics = None,
    partition: options.Partitions = None,
    local: Local = None,
    erased_by: ErasedBy = False,
    broker_config: options.BrokerConfig = None,
    object_option: shared.ObjectOptions = None,
    as_json: options.Json = False,
) -> None:
    """Show each partition: what is cleaned and dirty, in which tier, and what waits to be removed.

    With `--local` the local log of a host is shown beside what is in object storage.
    """

    def body() -> Result:
        from keeplast.cli.show.output import print_result, screen_width
        from keeplast.cli.show.tier_status import (
            erased_document,
            erased_lines,
            given_up_lines,
            status_document,
            status_parts,
        )
        from keeplast.model.topic_config import CleanerConfig

        call = store_call(store, topic, partition, object_option, broker_config=broker_config)
        erasures = {}
        places = _places(local)
        with call.opened() as opened:
            found = [opened.status(each, places(each)) for each in call.chosen(opened)]
            given_up = [each for each in opened.forgotten() if call.is_about(each)]
            if erased_by:
                from keeplast.service.tier_pace import tier_pace

                pace = tier_pace(CleanerConfig(), [each.remote_bytes for each in found])
                for each in found:
                    erasures[each.partition] = opened.erased_by(
                        each.partition, pace, places(each.partition)
                    )
        if not as_json:
            print_result(
                *status_parts(found, screen_width()), *erased_lines(erasures),
                *given_up_lines(given_up),
            )  # fmt: skip
        documents = [
            {**status_document(s), **erased_document(erasures.get(s.partition))} for s in found
        ]
        return 0, {
            "version": JSON_VERSION, "partitions": documents,
            "given_up": [
                {"topic": each.topic, "partition": each.partition} for each in given_up
            ],
        }  # fmt: skip

    run_guarded(body, as_json=as_json)


def _places(local: Path | None) -> Callable[[TopicPartition], Path | None]:
    """Return where the host has a partition, None for one that it has not.

    InvalidError when ``local`` is no data directory.
    """
    from keeplast.log.data_directory import open_data_directory
    from keeplast.log.files import LocalFiles

    if local is None:
        return lambda partition: None
    directory = open_data_directory(local, LocalFiles())

    def place(partition: TopicPartition) -> Path | None:
        entry = directory.find(partition)
        return None if entry is None else entry.path

    return place


def verify(
    store: shared.Store,
    topic: options.Topics = None,
    partition: options.Partitions = None,
    object_option: shared.ObjectOptions = None,
    as_json: options.Json = False,
) -> None:
    """Read every live object and check the store's invariants; changes nothing."""

    def body() -> Result:
        from keeplast.cli.frame.exit_codes import CHECK_FAILED, DONE
        from keeplast.cli.show.output import print_result
        from keeplast.cli.show.progress import ProgressEvents
        from keeplast.cli.show.tier_status import findings_document, findings_lines

        call = store_call(store, topic, partition, object_option)
        found = {}
        with call.opened() as opened:
            chosen = call.chosen(opened)
            for each in chosen:
                with ProgressEvents(f"reading {each}") as events:
                    found[each] = opened.verify(each, events.progressed, events.planned)
                if not as_json:
                    print_result(*findings_lines({each: found[each]}))
        code = CHECK_FAILED if any(found.values()) else DONE
        return code, {"version": JSON_VERSION, "partitions": findings_document(found)}

    run_guarded(body, as_json=as_json)
