"""Writes the pages of ``docs/reference`` that the code decides; ``--check`` only compares.

``settings.md`` from the definitions of :mod:`keeplast.config`, ``cli.md`` from the commands of
:mod:`keeplast.cli.main`, ``metrics.md`` from the tables of :mod:`keeplast.service.metrics`,
``places.md`` from :mod:`keeplast.config.place_properties` and :mod:`keeplast.api.refusals`. There
are no other sources: a page that differs from them fails the check.
"""

from __future__ import annotations

import inspect
import sys
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import Enum
from pathlib import Path

import typer
from typer.models import ParameterInfo

from keeplast.api.refusals import REFUSALS
from keeplast.cli.frame import command
from keeplast.cli.frame.lazy import import_home
from keeplast.cli.main import HOMES
from keeplast.config.definition import Definition, Scope, value_range, value_text, value_words
from keeplast.config.definitions import DEFINITIONS
from keeplast.config.place_properties import PROPERTIES, PlaceKind, PlaceProperty
from keeplast.service.gauges import GAUGES
from keeplast.service.metrics import (
    ATTACHED_METRICS,
    BLOCKED,
    BLOCKED_ABOUT,
    COUNTERS,
    PARTITION_GAUGES,
    PARTITIONS,
    PARTITIONS_ABOUT,
    REMOVED_ABOUT,
    REMOVED_RECORDS,
    TIER_COUNTERS,
    TIER_GAUGES,
)

REFERENCE = Path(__file__).resolve().parents[1] / "docs" / "reference"
COMMAND = "tools/make_reference.py"
NOTICE = f"<!-- Written by {COMMAND}; change the code, not this page. -->"

SETTINGS_HEAD = f"""# Settings

{NOTICE}

Which of Kafka's settings keeplast knows, what they may be, and which of them change what it does.

Names, defaults and ranges are Kafka's. A topic's value, from any source, beats the cluster's,
which beats the default; for the same scope a flag beats the place's table, which beats the file,
which beats the environment, which beats what the data directory's own `__cluster_metadata-0` says,
which beats a broker's `server.properties`. Within one source the first of several broker names that
is set counts.

| source | about the topic | about the cluster |
|---|---|---|
| flag | `--config segment.bytes=…`: the chosen topics | `--config log.segment.bytes=…` |
| [place](../how-to/places.md) | `[place.NAME.topic."name"]` | `[place.NAME.cluster]` |
| file | `[topic."name"]`, `"segment.bytes" = …` | `[cluster]`, `"log.segment.bytes" = …` |
| environment | | `KEEPLAST_LOG_SEGMENT_BYTES=…` |
| `__cluster_metadata-0` | its dynamic settings | those of the cluster and of this broker |
| `--broker-config server.properties` | | its static settings, by the broker's names alone |

The file is `keeplast.toml` in the data directory, or the one that `--config-file` names. Its keys
may be quoted or dotted; quote `compaction.strategy`, because another key begins with it. An empty
`compaction.strategy` of a topic means `offset`, an absent one the cluster's.

`keeplast config DATA_DIR --topic T --effective` says which value counts and where it came
from, `keeplast configure DATA_DIR KEY=VALUE --topic T` changes the file, `keeplast config --check
FILE` looks for mistakes, `keeplast config --key KEY` says what this page says.

A broker keeps what its cluster's settings are in `server.properties`, which is read only when
`--broker-config FILE` names it. Without it `plan`, `clean`, `run` and `run` say
once which of Kafka's defaults they assume because no source says otherwise: those
that decide when something may go, and whether a round is worth it (`assumed` in the JSON). With it
nothing is assumed: what the file leaves out is the default on the broker, too. The file is Java's
(ISO 8859-1, `=`, `:` or white space, comments, joined lines, escapes; of a repeated name the last
counts), at most 4 MiB. Only settings that stand on this page are taken from it; passwords and all
else are neither kept nor shown. What a broker ignores, such as `retention.ms` in place of
`log.retention.ms`, is ignored and named in a warning; a value that cannot be used is refused with
its line. `keeplast config --check server.properties` looks for mistakes. A file whose `node.id` is
not the directory's is named in a warning; `log.dirs` is not compared: a copy lies elsewhere.

An unknown name is refused with the nearest known one. Values are checked together, whichever
sources they come from: `min.compaction.lag.ms` must not exceed `max.compaction.lag.ms`, the
strategy `header` needs the name of a header, and a tiered topic's `local.retention.*` must not
exceed its `retention.*`. A load factor outside (0, 1], or a key map without a usable slot, is
refused with exit code 4. Settings without effect are accepted, checked, and named in a warning.

`cleanup.policy` has no default in practice: a topic whose policy nobody stated is refused, because
compacting a `delete` topic loses its history. The same goes for a cluster's default
(`log.cleanup.policy=compact`, from whichever source) where the directory has no metadata log: a
topic that has a policy of its own would not show it, so that each topic must be named by `--topic`
or given its policy in the file, and be it the only one. With the metadata log the default counts,
as on the broker. `internal.segment.bytes`, Kafka 4's name for a
`segment.bytes` below 1 MiB, is understood and wins over it.
"""

CLI_HEAD = f"""# Command line

{NOTICE}

What each command takes, and what it leaves behind.

`--help` of a command shows the options that are used most, at most twelve; `--help-all` and this
page show all. `--despite LIMIT` goes past the limit that a refusal names; each command has its own.

`--json` prints one document on stdout and nothing else, whatever happens; progress, warnings and
Spark's output go to stderr. Sizes are bytes, or a number with `k`, `m`, `g` or `t`.

Of every command, anywhere on its line: `--quiet` (`-q`) says errors and warnings only, `--verbose`
(`-v`) says each round as it ends and where an error comes from, `--log-file FILE` keeps all that is
said, with the time. `NO_COLOR` switches colours off; `keeplast --install-completion` lets the shell
complete.
"""

PLACES_HEAD = f"""# Places

{NOTICE}

Which properties a place has, and what each kind of place cannot do.

What a place is, and how one gets a name: [places](../how-to/places.md).

## Properties

A property stands in the `[place.NAME]` table of `keeplast.toml`, or on the command line as
`--with KEY=VALUE`, for which `--KEY VALUE` is short.

| property | of | written as | |
|---|---|---|---|
"""

REFUSALS_HEAD = """
## What cannot be done

Every verb can be done in every kind of place, but for these. The exit code is 4.

| verb | place | why not | instead |
|---|---|---|---|
"""

METRICS_HEAD = f"""# Metrics

{NOTICE}

What `keeplast run` serves to Prometheus with `--metrics-port N`, and under which of Kafka's names.

The server listens on the loopback unless `--metrics-host` says otherwise; the path is `/metrics`.
A scrape tells what the daemon last published: after each look at the partitions, and after the
rounds of each turn. Counters begin at 0 when the daemon starts.
"""


def settings_page() -> str:
    """Return the page of settings."""
    acting = [d for d in DEFINITIONS if d.has_effect]
    idle = [d for d in DEFINITIONS if not d.has_effect]
    parts = [
        SETTINGS_HEAD,
        "## Settings of a topic\n",
        *_settings_table(d for d in acting if d.scope is Scope.TOPIC),
        "\n## Settings of the cluster\n",
        *_settings_table(d for d in acting if d.scope is Scope.CLUSTER),
        "\n## Accepted without effect\n",
        *_settings_table(idle),
    ]
    return "\n".join(parts) + "\n"


def cli_page() -> str:
    """Return the page of commands."""
    parts = [CLI_HEAD, *_exit_codes()]
    for name, callback in _commands(HOMES):
        parts += [f"\n## `keeplast {name}`\n", inspect.cleandoc(callback.__doc__ or ""), ""]
        parts += _parameter_tables(callback)
    return "\n".join(parts).rstrip() + "\n"


def _commands(
    homes: Mapping[str, str], prefix: str = ""
) -> Iterator[tuple[str, Callable[..., object]]]:
    """Yield every command by its name, as its function."""
    for name, home in homes.items():
        found = import_home(home)
        if not isinstance(found, typer.Typer):
            yield prefix + name, found
            continue
        group = found.info.cls
        yield from _commands(getattr(group, "homes", {}), f"{prefix}{name} ")
        for each in found.registered_commands:
            assert each.callback is not None
            last = each.name or each.callback.__name__.replace("_", "-")
            yield f"{prefix}{name} {last}", each.callback


def places_page() -> str:
    """Return the page of places: their properties, and what is refused."""
    properties = [
        f"| `{each.name}` | {_kinds(each)} | {_written_as(each)} | {_cell(each.about)} |\n"
        for each in PROPERTIES
    ]
    refusals = [
        f"| `{verb}` | {kind} | {_cell(found.why)} | {_cell(found.instead)} |\n"
        for (verb, kind), found in REFUSALS.items()
    ]
    return "".join([PLACES_HEAD, *properties, REFUSALS_HEAD, *refusals])


def _kinds(found: PlaceProperty) -> str:
    kinds = [str(each) for each in PlaceKind if each in found.kinds]
    return "every place" if len(kinds) == len(PlaceKind) else ", ".join(kinds)


def _written_as(found: PlaceProperty) -> str:
    return ", ".join(f"`{each}`" for each in found.choices) or str(found.type)


def metrics_page() -> str:
    """Return the page of metrics."""
    gauges = [f"| `{g.metric}` | `{g.mbean}` | {g.about} |" for g in GAUGES]
    counters = [(f"{c.name}_total", c.about) for c in COUNTERS]
    counters += [(f"{REMOVED_RECORDS}_total", REMOVED_ABOUT), (PARTITIONS, PARTITIONS_ABOUT)]
    counters.append((BLOCKED, BLOCKED_ABOUT))
    partitions = [(each.name, each.about) for each in PARTITION_GAUGES]
    parts = [
        METRICS_HEAD,
        "## Kafka's gauges\n",
        "| Prometheus | Kafka | |\n|---|---|---|",
        *gauges,
        "\nDifferences from Kafka are on purpose: [differences](../explanation/differences.md), g.",
        "\n## Sums and states\n",
        "| name | |\n|---|---|",
        *(f"| `{name}` | {about} |" for name, about in counters),
        "\n## By partition\n",
        "Labels `topic` and `partition`; a partition that could never be looked at has none, and\n"
        "one that is retrying or set aside those of the last look that went well.\n",
        "| name | |\n|---|---|",
        *(f"| `{name}` | {about} |" for name, about in partitions),
        "\n## Of a store\n",
        "What `keeplast run` serves of a store, beside all of the above.\n",
        "| name | |\n|---|---|",
        *(f"| `{c.name}_total` | {c.about} |" for c in TIER_COUNTERS),
        *(f"| `{each.name}` | {each.about} By partition. |" for each in TIER_GAUGES),
        "\n## A live cluster\n",
        "What `keeplast run` serves of a live cluster, beside all of the above.\n",
        "| name | |\n|---|---|",
        *(
            f"| `{each.name}{'_total' if each.is_counter else ''}` | {each.about} |"
            for each in ATTACHED_METRICS
        ),
    ]
    return "\n".join(parts) + "\n"


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them and return 1 when one differs."""
    pages = {
        "settings.md": settings_page(),
        "cli.md": cli_page(),
        "metrics.md": metrics_page(),
        "places.md": places_page(),
    }
    differing = []
    for name, text in pages.items():
        path = REFERENCE / name
        if "--check" in arguments:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                differing.append(str(path.relative_to(REFERENCE.parents[1])))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for path_name in differing:
        print(f"{path_name} differs from the code; run {COMMAND}", file=sys.stderr)
    return 1 if differing else 0


def _settings_table(definitions: Iterable[Definition]) -> list[str]:
    lines = ["| name | broker's name | type | default | range | |", "|---|---|---|---|---|---|"]
    for each in definitions:
        brokers = ", ".join(
            f"`{synonym.key}`" for synonym in each.synonyms if synonym.key != each.key
        )
        about = each.about if each.has_effect else f"{each.about} Without effect: {each.idle}."
        lines.append(
            f"| `{each.key}` | {brokers} | {each.type.value} | {default_text(each)} "
            f"| {value_range(each)} | {about} |"
        )
    return lines


def default_text(definition: Definition) -> str:
    """Return a default, with what it means when it is a span of time or a size."""
    if definition.default in (None, (), ""):
        return "none"
    words = value_words(definition, definition.default)
    return f"`{value_text(definition.default)}`" + (f" ({words})" if words else "")


def _exit_codes() -> list[str]:
    rows = (
        (command.DONE, "done; skipped partitions included"),
        (command.CHECK_FAILED, "a check failed"),
        (command.USAGE, "usage: an argument or a setting cannot be used"),
        (command.CORRUPT, "corrupt input; other partitions went on"),
        (command.REFUSED, "refused: understood, and not safe to do"),
        (command.FAILED, "failed: disk, runner, or a defect of keeplast"),
        (command.INTERRUPTED, "stopped by SIGINT"),
        (command.TERMINATED, "stopped by SIGTERM"),
    )
    return ["| exit code | |", "|---|---|", *(f"| {code} | {words} |" for code, words in rows)]


def _parameter_tables(callback: Callable[..., object]) -> list[str]:
    hints = typing.get_type_hints(callback, include_extras=True)
    panels: dict[str, list[str]] = {}
    for name, parameter in inspect.signature(callback).parameters.items():
        hint = hints[name]
        info = next(m for m in hint.__metadata__ if isinstance(m, ParameterInfo))
        row = _parameter_row(info, typing.get_args(hint)[0], parameter)
        panels.setdefault(info.rich_help_panel or "Arguments and output", []).append(row)
    lines: list[str] = []
    for panel, rows in panels.items():
        lines += [f"| {panel} | | default |", "|---|---|---|", *rows, ""]
    return lines


def _parameter_row(info: ParameterInfo, kind: object, parameter: inspect.Parameter) -> str:
    metavar = info.metavar or ""
    if not metavar and isinstance(kind, type) and issubclass(kind, Enum):
        metavar = "|".join(str(member.value) for member in kind)
    # Inside Annotated the first name of an option is where its default would be.
    given = (info.default, *(getattr(info, "param_decls", None) or ()))
    name = " ".join([*(each for each in given if isinstance(each, str)), metavar]).strip()
    default = parameter.default
    is_told = default not in (None, False, inspect.Parameter.empty)
    shown = f"`{getattr(default, 'value', default)}`" if is_told else ""
    return f"| `{_cell(name)}` | {_cell(info.help or '')} | {shown} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
