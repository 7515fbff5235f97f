"""Asks a live cluster what consumer groups have committed, for tombstones that wait for them."""

from __future__ import annotations

from collections.abc import Mapping

from keeplast.cluster.client import ClusterClient
from keeplast.cluster.group_offsets import BrokerGroups


def ask_brokers(bootstrap_servers: str, settings: Mapping[str, str] | None = None) -> BrokerGroups:
    """Return who tells rounds what groups have committed; it connects when it is first asked.

    ``settings`` are the client's own (librdkafka's), such as ``security.protocol``. What brokers do
    not tell counts as not committed, and no call fails for it. InvalidError when the client is not
    installed or cannot use a setting.
    """
    return BrokerGroups(ClusterClient(bootstrap_servers, settings))
