"""``keeplast copy``: from a data directory into a store."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from msgspec.structs import replace

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import Json, ScopeOptions
from keeplast.cli.frame.round_options import PlaceOptions, TakeOver
from keeplast.config.place_properties import WITH

if TYPE_CHECKING:
    from pathlib import Path

    from keeplast.api.directory_logs import DirectoryLogs
    from keeplast.config.places import FoundPlace
    from keeplast.model.partition import TopicPartition
    from keeplast.service.copying import Copied, CopiedPartition, CopyAnswer

NAMES_SHOWN_MAX = 10
DataDir = Annotated[
    str,
    typer.Argument(
        metavar="DATA_DIR", show_default=False,
        help="A Kafka log.dirs directory on this host, one partition directory in it, or the name "
        "of one from keeplast.toml. It is only read.",
    ),
]  # fmt: skip
New = Annotated[
    bool,
    typer.Option(
        "--new",
        help="Take in partitions that the store does not have, too, and all of each: the active "
        "segment is copied up to the high watermark. A store that is not there is made; it needs "
        "--objects URL (file://, s3://, gs:// or az://) once.",
    ),
]


class StoreOptions(PlaceOptions, frozen=True, kw_only=True):
    """Into which store is copied."""

    place: Annotated[
        str,
        typer.Argument(
            metavar="STORE", show_default=False,
            help="sqlite:///FILE, postgresql://USER@HOST/DATABASE with the password in PGPASSWORD "
            "or ~/.pgpass, or the name of a store from keeplast.toml.",
        ),
    ]  # fmt: skip

    def source_of(self, data_dir: str, found: FoundPlace) -> DirectoryLogs:
        """Return the directory with its settings: of the command line, its table, the store's."""
        from keeplast.api.directory_logs import DirectoryLogs
        from keeplast.config.layers import flag_pairs
        from keeplast.config.place_properties import PlaceKind
        from keeplast.config.places import find_place
        from keeplast.errors import InvalidError

        source = find_place(data_dir)
        if source.kind is not PlaceKind.DIRECTORY:
            raise InvalidError(
                "a copy begins with a data directory: keeplast copy DATA_DIR STORE. "
                f"DATA_DIR={source.shown}",
                code="K160",
            )

        def file(name: str) -> Path | None:
            given = found.given.get(name)
            spoken = found.path(name) if given is not None and given.source == WITH else None
            return spoken or source.path(name) or found.path(name)

        return DirectoryLogs(
            source.address, config=flag_pairs(self.flags), config_file=file("config-file"),
            broker_config=file("broker-config"), settings=source.settings or found.settings,
        )  # fmt: skip


@command(
    first=("new", "topics", "take_over"),
    example="keeplast copy DATA_DIR sqlite:///meta.db --new --objects file:///objects",
)
def copy(
    data_dir: DataDir,
    where: StoreOptions,
    scope: ScopeOptions,
    new: New = False,
    take_over: TakeOver = False,
    as_json: Json = False,
) -> Result:
    """Copy what partitions of a store have gained in a Kafka data directory since the last time.

    Closed segments that are replicated and decided; the directory is only read, and its broker may
    be running. Partitions that the store does not have are left alone and said. With --new they are
    taken in, and settings are kept with the partition. These come from --config, the settings file,
    the directory's own metadata log, the environment or --broker-config. A partition that is kept
    with other settings is refused. A partition that was given up begins again with --new.
    """
    from keeplast.api.open_place import open_found
    from keeplast.api.place import PlaceEvents
    from keeplast.cli.frame.command import DONE, error_exit_code
    from keeplast.cli.show.output import fault_text, print_result, say
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.model.text import printable
    from keeplast.service.copying import CopyTerms

    found = where.found()
    source = where.source_of(data_dir, found)
    with ProgressEvents("copying") as events:
        # The broker's file is about the directory: what it says is kept with what is new.
        own = {name: each for name, each in found.given.items() if name != "broker-config"}
        place = open_found(
            replace(found, given=own), config={}, events=PlaceEvents(warned=events.warned)
        )

        def heard(partition: TopicPartition, done: Copied) -> None:
            if isinstance(done, Exception):
                say(f"{partition}: {fault_text(done)}", kind="error")
                return
            for each in (done.left_out, *(each.sentence() for each in done.replaced)):
                if each is not None:
                    events.warned(f"{partition}: {each}")
            if not as_json:
                print_result(printable(_line(partition, done)))

        terms = CopyTerms(
            takes_new=new, takes_over=take_over, receipt=found.path("receipt"), heard=heard,
            planned=events.planned, progressed=events.progressed,
        )  # fmt: skip
        answer = place.copy(source, scope, terms)
    if answer.unknown:
        say(printable(_left_alone(answer.unknown)), kind="note")
    if not as_json:
        print_result(*[""] * bool(answer.copied), _closing(answer))
    code = max(map(error_exit_code, answer.faults), default=DONE)
    return code, {**place.head, **answer.document(fault_text)}


def _line(partition: TopicPartition, done: CopiedPartition) -> str:
    from keeplast.model.text import format_bytes, format_counted

    state = done.state
    return (
        f"{partition}: {format_counted(len(done.added), 'segment')} copied, {len(state.routes)} in "
        f"the store, {format_bytes(state.remote_bytes)}, offsets "
        f"{state.log_start}..{state.remote_end}"
    )


def _left_alone(unknown: tuple[TopicPartition, ...]) -> str:
    names = ", ".join(map(str, unknown[:NAMES_SHOWN_MAX]))
    more = f" and {len(unknown) - NAMES_SHOWN_MAX:,} more" if len(unknown) > NAMES_SHOWN_MAX else ""
    return f"not in the store, and left alone: {names}{more}; --new takes in what is new"


def _closing(answer: CopyAnswer) -> str:
    from keeplast.cli.show.rounds import ends_line
    from keeplast.model.text import format_bytes, format_counted

    grown = [each.added for each in answer.copied if each.added]
    amount = (
        f"{format_counted(sum(map(len, grown)), 'segment')}, {format_bytes(sum(map(sum, grown)))}"
    )
    ends = {
        f"copied ({amount})": len(grown), "had nothing new": len(answer.copied) - len(grown),
        "left alone": len(answer.unknown),
    }  # fmt: skip
    return ends_line(ends, failed=len(answer.faults))
