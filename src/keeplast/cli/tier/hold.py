"""``keeplast tier hold``: keep every host's rounds in a store from passing a point, for a while."""

from __future__ import annotations

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.parameters import Json
from keeplast.cli.hold import At, HeldPartitions, HeldTopics, HoldName, MaxAge
from keeplast.cli.tier.options import StoreAddress

hold = typer.Typer(
    name="hold",
    help="Keep rounds in a store from cleaning past a point, for a while.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@hold.command()
@command(
    first=("store", "topics", "at"),
    example="keeplast tier hold add audit --store sqlite:///meta.db --topic orders --at now "
    "--max-age 7d",
)
def add(
    name: HoldName,
    address: StoreAddress,
    topics: HeldTopics,
    at: At,
    max_age: MaxAge,
    partitions: HeldPartitions = (),
    as_json: Json = False,
) -> Result:
    """Keep tier clean and tier run of every host from passing a point of one or more topics.

    The states as of it and of every later point can then be told until the hold is over. Refused
    where cleaning has passed it already. Hosts may be at work, and none of them is fenced. What a
    data directory's own cleaner takes before it is copied is held there, by keeplast hold; expire,
    truncate and forget go on.
    """
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.hold import hold_documents, holds_table
    from keeplast.cli.show.output import print_result

    with address.opened() as opened:
        added = opened.holds.add(opened.holds.choose(topics, partitions), name, at, max_age)
        now_ms = opened.holds.now_ms()
    if not as_json:
        print_result(holds_table(added, now_ms))
    return DONE, {"store": address.shown, "holds": hold_documents(added, now_ms)}


@hold.command(name="list")
@command(first=("store",), example="keeplast tier hold list --store sqlite:///meta.db")
def list_(address: StoreAddress, as_json: Json = False) -> Result:
    """Show every hold of a store; those that are over stay until the next is added."""
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.hold import hold_documents, holds_table
    from keeplast.cli.show.output import print_result

    with address.opened(only_looks=True) as opened:
        found = [each.hold for each in opened.holds.all()]
        now_ms = opened.holds.now_ms()
    if not as_json:
        print_result(holds_table(found, now_ms))
    return DONE, {"store": address.shown, "holds": hold_documents(found, now_ms)}


@hold.command()
@command(first=("store",), example="keeplast tier hold release audit --store sqlite:///meta.db")
def release(name: HoldName, address: StoreAddress, as_json: Json = False) -> Result:
    """End a hold before its time, for all partitions that it is of."""
    from keeplast.cli.frame.exit_codes import DONE
    from keeplast.cli.hold import hold_documents, released_words
    from keeplast.cli.show.output import print_result

    with address.opened() as opened:
        released = opened.holds.release(name)
        now_ms = opened.holds.now_ms()
    if not as_json:
        print_result(released_words(name, released))
    return DONE, {"store": address.shown, "released": hold_documents(released, now_ms)}
