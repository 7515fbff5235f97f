"""``keeplast config``: what settings there are, which count, and changing them in the file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from keeplast.cli.frame.command import Result, command
from keeplast.cli.frame.options import FileOptions, SettingOptions
from keeplast.cli.frame.parameters import BrokerConfig, Json

config = typer.Typer(
    name="config",
    help="Settings: which there are, which count and why, and changing them.",
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)

DataDir = Annotated[
    Path,
    typer.Argument(
        metavar="DATA_DIR",
        help="The data directory, or a partition in it.",
        show_default=False,
    ),
]
Topic = Annotated[
    str | None,
    typer.Option("--topic", metavar="T", help="Of this topic. Default: of the cluster."),
]
Key = Annotated[
    str,
    typer.Argument(
        metavar="KEY", help="A setting by its topic's or its broker's name.", show_default=False
    ),
]


@config.command(name="list")
@command(
    first=("topic", "effective", "flags"),
    example="keeplast config list DATA_DIR --topic orders --effective",
)
def list_settings(
    settings: SettingOptions,
    data_dir: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DATA_DIR]",
            help="List what counts in this data directory. Default: what there is.",
            show_default=False,
        ),
    ] = None,
    topic: Topic = None,
    effective: Annotated[
        bool,
        typer.Option("--effective", help="With every default, not only what some source has set."),
    ] = False,
    as_json: Json = False,
) -> Result:
    """List the settings: all there are, or of a data directory those set and where.

    A topic's value from any source beats the cluster's, which beats the default; flags beat the
    environment, which beats the file, which beats the directory's own metadata, which beats the
    broker's file.
    """
    from keeplast.cli.config_call import list_what_counts

    return list_what_counts(data_dir, topic, settings, effective=effective, as_json=as_json)


@config.command()
@command(first=("broker_config",), example="keeplast config describe min.cleanable.dirty.ratio")
def describe(key: Key, broker_config: BrokerConfig = None, as_json: Json = False) -> Result:
    """Say what a setting means: names, type, default, range, trade-off, and whether it acts.

    With `--broker-config` also what that file says of it, and in which line.
    """
    from keeplast.cli.config_call import describe_setting

    return describe_setting(key, broker_config, as_json=as_json)


@config.command()
@command(first=(), example="keeplast config check keeplast.toml")
def check(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="A settings file, or a broker's server.properties (any name with .properties). A "
            "directory means its keeplast.toml.",
            show_default=False,
        ),
    ],
    as_json: Json = False,
) -> Result:
    """Look for mistakes in a settings file; all of them are told, and the exit code is 1."""
    from keeplast.cli.config_call import check_file

    return check_file(file, as_json=as_json)


@config.command()
@command(
    first=("topic", "flags", "config_file"),
    example="keeplast config get cleanup.policy DATA_DIR --topic orders",
)
def get(
    key: Key,
    settings: SettingOptions,
    data_dir: Annotated[
        Path | None,
        typer.Argument(
            metavar="[DATA_DIR]",
            help="The data directory, or a partition in it. Default: what counts without any, by "
            "options, environment and Kafka's defaults.",
            show_default=False,
        ),
    ] = None,
    topic: Topic = None,
    as_json: Json = False,
) -> Result:
    """Print the value that counts; where it comes from goes to stderr."""
    from keeplast.cli.config_call import get_value

    return get_value(key, data_dir, topic, settings, as_json=as_json)


@config.command(name="set")
@command(
    first=("topic", "config_file", "broker_config"),
    example="keeplast config set cleanup.policy=compact DATA_DIR --topic orders",
)
def set_settings(
    settings: Annotated[
        tuple[str, ...],
        typer.Argument(metavar="KEY=VALUE...", help="Settings to write.", show_default=False),
    ],
    data_dir: DataDir,
    files: FileOptions,
    topic: Topic = None,
    as_json: Json = False,
) -> Result:
    """Write settings into keeplast.toml of a data directory, checked together with all others.

    Nothing is written unless the result can be used. The rest of the file stays as it is, comments
    included. What runs takes it from its next round on.
    """
    from keeplast.cli.config_call import change_file, check_order, pairs

    check_order(settings)
    return change_file(pairs(settings), data_dir, topic, files, as_json=as_json)


@config.command()
@command(
    first=("topic", "config_file", "broker_config"),
    example="keeplast config unset cleanup.policy DATA_DIR --topic orders",
)
def unset(
    keys: Annotated[
        tuple[str, ...],
        typer.Argument(metavar="KEY...", help="Settings to remove.", show_default=False),
    ],
    data_dir: DataDir,
    files: FileOptions,
    topic: Topic = None,
    as_json: Json = False,
) -> Result:
    """Remove settings from keeplast.toml, so that the next source in line counts again."""
    from keeplast.cli.config_call import change_file, check_order

    check_order(keys)
    return change_file(dict.fromkeys(keys), data_dir, topic, files, as_json=as_json)
