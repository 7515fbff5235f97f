"""The options that the commands of ``keeplast attach`` share, and the connection they open.

Imports nothing heavy: the client is loaded when a command's body runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.parameters import SCOPE, SETTINGS
from keeplast.config.choice import SettingSources
from keeplast.errors import InvalidError

if TYPE_CHECKING:
    from keeplast.cluster.client import ClusterClient
    from keeplast.cluster.facts import ClusterFacts, TopicFacts
    from keeplast.cluster.metadata_log import FoldedMetadata


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterOptions:
    """Which cluster a command looks at, and which of its topics."""

    bootstrap_server: Annotated[
        str,
        typer.Option(
            "--bootstrap-server",
            metavar="HOST:PORT",
            show_default=False,
            help="Brokers of the cluster, separated by commas.",
        ),
    ]
    command_config: Annotated[
        Path | None,
        typer.Option(
            "--command-config",
            metavar="FILE",
            help="client.properties as Kafka's own tools take it, for SSL and SASL.",
        ),
    ] = None
    topics: Annotated[
        tuple[str, ...],
        typer.Option(
            "--topic",
            metavar="T",
            help="Only this topic; repeatable. Default: every tiered topic.",
            rich_help_panel=SCOPE,
        ),
    ] = ()

    def connect(self) -> ClusterClient:
        """Return a connection; InvalidError when the file cannot be used, or no client is there."""
        from keeplast.cluster.client import ClusterClient

        return ClusterClient(self.bootstrap_server, self._settings())

    def _settings(self) -> dict[str, str]:
        from keeplast.cluster.client_properties import FILE_BYTES_MAX, decode_client_properties
        from keeplast.log.files import LocalFiles

        if self.command_config is None:
            return {}
        path = self.command_config.expanduser().resolve()
        try:
            data = LocalFiles().read_bytes(path, FILE_BYTES_MAX)
        except FileNotFoundError as error:
            raise InvalidError(f"no such file. --command-config={path}") from error
        return decode_client_properties(data, str(path))


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyOptions(SettingSources):
    """Where it is said what topics are meant to be, since their own policy stays ``delete``."""

    config_file: Annotated[
        Path | None,
        typer.Option(
            "--config-file",
            metavar="FILE",
            help='TOML with [topic."name"] tables: cleanup.policy is what keeplast is to do. '
            "Default: compact.",
            rich_help_panel=SETTINGS,
        ),
    ] = None


def fold(client: ClusterClient, facts: ClusterFacts, metadata_topic: TopicFacts) -> FoldedMetadata:
    """Return what brokers know of the topics of ``facts``; progress is shown on a terminal."""
    from keeplast.cli.show.attach import folding
    from keeplast.cluster.metadata_log import fold_metadata, partitions_of

    chosen = partitions_of(facts.topics, metadata_topic)
    with folding() as progressed:
        return fold_metadata(client, metadata_topic, chosen, progressed)
