"""What a principal needs of a live cluster: operations on resources, as Kafka's ACLs name them.

Pure. The rule: **a right is named where it is missing, and never more than that one**: who is told
to grant too much grants it. Read and Write on a topic imply Describe.

Answers to ``AclOperation`` and what ``KafkaApis`` asks for; tried on brokers of 3.9.1 and 4.3.0.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass

from keeplast.errors import RefusedError


@dataclass(frozen=True, slots=True)
class Right:
    """``operation`` on a topic or a consumer group, or on the cluster when neither is named."""

    operation: str
    topic: str | None = None
    group: str | None = None

    def __str__(self) -> str:
        """Return it in words."""
        if self.group is not None:
            return f"{self.operation} on the consumer group {self.group}"
        where = "the cluster" if self.topic is None else f"the topic {self.topic}"
        return f"{self.operation} on {where}"

    def line(self, address: str) -> str:
        """Return the line that grants it, but for the principal's name."""
        if self.group is not None:
            what = f"--group {shlex.quote(self.group)}"
        else:
            what = "--cluster" if self.topic is None else f"--topic {shlex.quote(self.topic)}"
        return (
            f"kafka-acls.sh --bootstrap-server {shlex.quote(address)} --add "
            f"--allow-principal User:NAME --operation {self.operation} {what}"
        )


def missing(right: Right, what: str) -> RefusedError:
    """Return the error of who asked for ``what`` without ``right``."""
    return RefusedError(
        f"the principal may not do that; it needs {right} (kafka-acls --add). asked={what}"
    )


def is_refused(ask: Callable[[], object]) -> bool:
    """Return whether ``ask`` is refused."""
    try:
        ask()
    except RefusedError:
        return True
    return False
