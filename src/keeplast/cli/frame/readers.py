"""The options by which a command asks a cluster what consumer groups have committed.

Imports nothing heavy: the client is loaded when somebody is to be asked.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from keeplast.cli.frame.parameters import FACTS
from keeplast.errors import InvalidError

if TYPE_CHECKING:
    from keeplast.cluster.group_offsets import BrokerGroups


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    """Whom to ask for what the groups of ``tombstones.wait.for.groups`` have committed."""

    bootstrap_server: Annotated[
        str | None,
        typer.Option(
            "--bootstrap-server",
            metavar="HOST:PORT",
            show_default=False,
            help="Brokers to ask what the groups of tombstones.wait.for.groups have committed, "
            "separated by commas. Default: the __consumer_offsets of a data directory.",
            rich_help_panel=FACTS,
        ),
    ] = None
    command_config: Annotated[
        Path | None,
        typer.Option(
            "--command-config",
            metavar="FILE",
            help="client.properties as Kafka's own tools take it, for SSL and SASL.",
            rich_help_panel=FACTS,
        ),
    ] = None

    def brokers(self) -> BrokerGroups | None:
        """Return who is asked, None for nobody; InvalidError when the options cannot be used."""
        if self.bootstrap_server is None:
            if self.command_config is not None:
                raise InvalidError(
                    "there is nobody to connect to; add --bootstrap-server. "
                    f"--command-config={self.command_config}"
                )
            return None
        from keeplast.cluster.client import ClusterClient
        from keeplast.cluster.group_offsets import BrokerGroups

        settings = read_client_settings(self.command_config)
        return BrokerGroups(ClusterClient(self.bootstrap_server, settings))


def read_client_settings(command_config: Path | None) -> dict[str, str]:
    """Return what a file of client properties says; InvalidError when it cannot be used."""
    from keeplast.cluster.client_properties import read_client_properties

    return read_client_properties(command_config, "--command-config")
