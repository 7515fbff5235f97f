"""``keeplast place``: names for places, so that no command line repeats what a place needs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.lazy import PlaceCommand
from keeplast.cli.frame.options import Flags, Json
from keeplast.cli.frame.round_options import Given, OptionalPlace, PlaceOptions
from keeplast.errors import InvalidError

place = typer.Typer(
    name="place",
    help="Names for places: a data directory, a store, or the tiered topics of a live cluster.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

NewName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="Letters, digits, . _ and -.", show_default=False),
]
Address = Annotated[
    str,
    typer.Argument(
        metavar="PLACE", show_default=False,
        help="A path, s3://, gs:// or az://; sqlite:///FILE or postgresql://USER@HOST/DATABASE; "
        "kafka://HOST:PORT[,HOST:PORT].",
    ),
]  # fmt: skip


@place.command(cls=PlaceCommand, name="list")
@command(first=("properties",), example="keeplast place list")
def list_places(
    properties: Annotated[
        bool, typer.Option("--properties", help="List the properties that a place can have.")
    ] = False,
    as_json: Json = False,
) -> Result:
    """List the named places, and the file that names each."""
    from keeplast.cli.frame.command import DONE
    from keeplast.cli.show.output import print_result
    from keeplast.cli.show.tables import new_table
    from keeplast.config.place_properties import PROPERTIES
    from keeplast.config.places import place_files, place_tables, read_table
    from keeplast.model.text import printable, shown_url

    if properties:
        table = new_table(
            "property",
            "of",
            "written as",
            "",
            rows=(
                (prop.name, ", ".join(sorted(prop.kinds)), prop.type, prop.about)
                for prop in PROPERTIES
            ),
        )
        if not as_json:
            print_result(table)
        return DONE, {
            "properties": [
                {"name": each.name, "kinds": sorted(each.kinds), "type": each.type,
                 "about": each.about, "choices": list(each.choices)}
                for each in PROPERTIES
            ]
        }  # fmt: skip
    found = [(each.file, read_table(each)) for each in place_tables()]
    if not as_json and not found:
        print_result("no places; keeplast place add NAME PLACE names one")
    elif not as_json:
        table = new_table(
            "place",
            "kind",
            "at",
            "file",
            rows=(
                (each.name, each.kind, printable(shown_url(each.address)), str(file))
                for file, each in found
            ),
        )
        print_result(table)
    return DONE, {
        "files": [str(each) for each in place_files()],
        "places": [
            {"name": each.name, "kind": each.kind, "at": shown_url(each.address),
             "file": str(file)}
            for file, each in found
        ],
    }  # fmt: skip


@place.command(cls=PlaceCommand)
@command(
    first=("given", "file"),
    example="keeplast place add prod kafka://b1:9092 --with storage=aiven:s3://bucket/prefix "
    "--with decisions=postgresql://keeplast@db/keeplast",
)
def add(
    name: NewName,
    place: Address,
    given: Given = (),
    file: Annotated[
        Path | None,
        typer.Option(
            "--file", metavar="FILE", show_default=False,
            help="The keeplast.toml that is written. Default: of the working directory if there is "
            "one, else that of KEEPLAST_CONFIG, else the user's.",
        ),
    ] = None,
    as_json: Json = False,
) -> Result:  # fmt: skip
    """Name a place: write its table into keeplast.toml; the rest of the file stays as it is.

    Nothing is connected; keeplast place check NAME looks whether all that it needs is there.
    """
    from keeplast.cli.frame.command import DONE
    from keeplast.cli.show.output import print_result
    from keeplast.config.places import file_for_new, properties_of
    from keeplast.config.settings_file import add_place
    from keeplast.log.files import LocalFiles

    path = (file_for_new() if file is None else file).absolute()
    found = add_place(path, LocalFiles(), name, properties_of(given, place))
    if not as_json:
        print_result(f"{name} is a {found.kind} now: keeplast plan {name}", f"path={path}")
    return DONE, {"name": name, "kind": found.kind, "file": str(path)}


@place.command(cls=PlaceCommand)
@command(first=("topics",), example="keeplast place check DATA_DIR")
def check(
    place: OptionalPlace = None,
    given: Given = (),
    flags: Flags = (),
    topics: Annotated[
        tuple[str, ...],
        typer.Option(
            "--topic", metavar="T",
            help="Only this topic of a live cluster; repeatable. Default: every tiered topic.",
        ),
    ] = (),
    as_json: Json = False,
) -> Result:  # fmt: skip
    """Check this installation and a place: reach, rights, release, clock, settings.

    Changes nothing but for one probe, which is written among keeplast's own objects of a store or
    of a cluster's storage, read, listed and removed. The principals should be those that rounds
    have; each right that is missing is named. A live cluster's storage and decision log are looked
    at where they are given. Exit code 1 when something would end a round or refuses a topic.
    Without PLACE only the installation is checked.
    """
    from keeplast import __version__
    from keeplast.cli.frame.command import CHECK_FAILED, DONE
    from keeplast.cli.frame.wiring import RunnerName, open_runner
    from keeplast.cli.show.output import print_result
    from keeplast.cli.show.verify import check_parts
    from keeplast.service.place_check import CheckState, check_installation

    def open_spark() -> object:
        return open_runner(RunnerName.SPARK, master=None, cores=None)

    checks = [*check_installation(__version__, open_spark)]
    document: dict[str, Any] = {"checks": checks}
    if place is not None:
        _, asked = PlaceOptions(place=place, given=given, flags=flags).open()
        found = asked.check(topics)
        checks += found.checks
        document = {
            **asked.head, "checks": checks, "topics": found.topics, "cluster_id": found.cluster_id,
            "brokers": found.brokers,
        }  # fmt: skip
    elif given or flags or topics:
        raise InvalidError(
            "these are about a place; give PLACE, or leave them out. PLACE=", code="K103"
        )
    if not as_json:
        print_result(*check_parts(checks))
    failed = any(each.state is CheckState.PROBLEM for each in checks)
    return CHECK_FAILED if failed else DONE, document
