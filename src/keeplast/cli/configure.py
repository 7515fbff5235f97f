"""``keeplast configure``: change the settings of a place."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import MEMORY_DEFAULT, Json, ScopeOptions, despite_option
from keeplast.cli.frame.round_options import Given, PlaceName, PlaceOptions, TakeOver, runner_of
from keeplast.errors import Despite, InvalidError

if TYPE_CHECKING:
    from keeplast.service.place_settings import ConfiguredPartition, ConfiguredPlace

Settings = Annotated[
    tuple[str, ...],
    typer.Argument(metavar="KEY=VALUE", help="Settings to write.", show_default=False),
]
Unset = Annotated[
    tuple[str, ...],
    typer.Option(
        "--unset", metavar="KEY",
        help="A setting to take out, so that the next source counts again; repeatable.",
    ),
]  # fmt: skip
Plan = Annotated[bool, typer.Option("--plan", help="Only say what would follow; change nothing.")]
Limits = Annotated[tuple[Despite, ...], despite_option(Despite.KEYLESS_RECORDS)]


@command(
    first=("topics", "unset", "plan"),
    example="keeplast configure DATA_DIR cleanup.policy=compact --topic orders",
)
def configure(
    place: PlaceName,
    scope: ScopeOptions,
    settings: Settings = (),
    given: Given = (),
    unset: Unset = (),
    plan: Plan = False,
    despite: Limits = (),
    take_over: TakeOver = False,
    as_json: Json = False,
) -> Result:
    """Change settings: in keeplast.toml of a data directory, or kept with a store's partitions.

    The change is checked together with every other source, and nothing is written unless the result
    can be used. The rest of the file stays as it is, comments included. Running rounds take it from
    the next one on.

    A topic of a store that becomes compacted is read once first: records without a key belong to no
    key and would go. They are counted, and the change is refused without --despite keyless-records.
    """
    from keeplast.api.round_terms import WorkTerms
    from keeplast.cli.frame.command import say_faults
    from keeplast.cli.frame.options import memory_size
    from keeplast.cli.frame.wiring import RunnerName, open_runner
    from keeplast.cli.show.output import say
    from keeplast.cli.show.progress import ProgressEvents
    from keeplast.service.place_settings import ChangeTerms

    changes = _changes(place, settings, unset)
    found, asked = PlaceOptions(place=place, given=given).open()
    cores = runner_of(found).cores
    terms = ChangeTerms(plans=plan, drops_keyless=bool(despite), takes_over=take_over)
    with ProgressEvents("reading") as events:
        work = WorkTerms(
            # Counting is one walk through each log: not worth a start of Spark.
            open_runner=lambda: open_runner(RunnerName.LOCAL, master=None, cores=cores),
            events=events, memory_bytes=memory_size(found.text("memory") or MEMORY_DEFAULT),
        )  # fmt: skip
        done = asked.configure(changes, scope, terms, work)
    say(*done.warnings, kind="warning")
    code = say_faults(
        [(each.partition, each.failure) for each in done.partitions if each.failure is not None]
    )
    if not as_json:
        _show(done, plans=plan)
    return code, {**asked.head, **_document(done, plans=plan)}


def _changes(place: str, settings: Sequence[str], unset: Sequence[str]) -> dict[str, str | None]:
    """Return the changes by key; InvalidError for what is none, or PLACE after it."""
    if "=" in place and any(Path(each).is_dir() for each in settings):
        raise InvalidError(
            f"PLACE stands first: keeplast configure PLACE KEY=VALUE. argument={place!r}",
            code="K112",
        )
    changes: dict[str, str | None] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise InvalidError(
                f"setting without a value; write KEY=VALUE. setting={setting!r}", code="K112"
            )
        changes[key.strip()] = value.strip()
    twice = sorted(changes.keys() & set(unset))
    if twice:
        raise InvalidError(f"a setting is set and taken out; keep one. key={twice[0]}", code="K101")
    changes.update(dict.fromkeys(unset))
    if not changes:
        raise InvalidError("say what to change: KEY=VALUE, or --unset KEY", code="K102")
    return changes


def _show(done: ConfiguredPlace, *, plans: bool) -> None:
    from keeplast.cli.show.config import change_lines, migration_lines
    from keeplast.cli.show.output import print_result

    if done.edit is not None:
        print_result(*change_lines(done.edit, done.topic, done.root))
    for each in done.partitions:
        if each.migration is not None:
            print_result(*migration_lines(each.partition, each.migration, plans=plans))


def _document(done: ConfiguredPlace, *, plans: bool) -> dict[str, Any]:
    from keeplast.config.setting_rows import value_row

    edit = done.edit
    return {
        "is_plan": plans,
        "path": None if edit is None else str(edit.path),
        "topic": done.topic,
        "changes": [
            {
                "key": each.key,
                "before": value_row(each.definition, each.before),
                "after": value_row(each.definition, each.after),
                "removed": list(each.removed),
            }
            for each in (() if edit is None else edit.changes)
        ],
        "partitions": [_partition_document(each, plans=plans) for each in done.partitions],
        "warnings": list(done.warnings),
    }


def _partition_document(each: ConfiguredPartition, *, plans: bool) -> dict[str, Any]:
    from keeplast.cli.frame.command import error_document

    row: dict[str, Any] = {"topic": each.partition.topic, "partition": each.partition.partition}
    found = each.migration
    if found is None:
        assert each.failure is not None
        return row | {"error": error_document(each.failure)["error"]}
    row |= {
        "changed": not plans, "settings": dict(found.settings), "warnings": list(found.hazards),
    }  # fmt: skip
    if found.becomes_compacted:
        row |= {
            "becomes_compacted": True, "records": found.records,
            "keyless_records": found.keyless_records, "keyless_bytes": found.keyless_bytes,
        }  # fmt: skip
    return row
