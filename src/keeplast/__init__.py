"""Log compaction for Kafka-format logs, outside the broker, on Spark.

Public names are imported when they are first used, because some of them load compiled kernels.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

from keeplast.errors import name_parameters

if TYPE_CHECKING:
    from keeplast.api.attached_logs import AttachedLogs
    from keeplast.api.attached_state import ask_brokers, attached_state
    from keeplast.api.certificate import VerifiedCertificate, certify, verify_certificate
    from keeplast.api.directory_logs import DirectoryLogs
    from keeplast.api.erase import Erasure, erase, erasure_requests, forget_erasure, reapply_erasure
    from keeplast.api.explain import explain, explain_keys, explain_place
    from keeplast.api.export import export
    from keeplast.api.exported_state import exported_state
    from keeplast.api.hold import add_hold, holds, kept_rounds, release_hold, undo
    from keeplast.api.live_state import LiveRecord, LiveState
    from keeplast.api.open_log import OpenLog, Segment, open_log
    from keeplast.api.open_place import open
    from keeplast.api.open_store import host_partition, open_store, stored_state
    from keeplast.api.rounds import clean, plan
    from keeplast.api.stored_logs import StoredLogs
    from keeplast.config.layers import broker_settings
    from keeplast.config.log_source import register
    from keeplast.config.mapping import cleaner_config, topic_config
    from keeplast.errors import (
        CommitUnknownError,
        CompactionError,
        ConflictError,
        CorruptError,
        FencedError,
        InvalidError,
        InvariantError,
        RefusedError,
        UnavailableError,
    )
    from keeplast.host.leased_host import LeasedHost
    from keeplast.log.append import NewRecord
    from keeplast.model.hold import Hold
    from keeplast.model.partition import TopicPartition
    from keeplast.model.topic_config import CleanerConfig, TopicConfig
    from keeplast.pipeline.export import Export
    from keeplast.rewrite.stats import Stats
    from keeplast.run.undo import UndoRound
    from keeplast.run.undoing import UndoReport
    from keeplast.service.erasure.certificate import IssuedCertificate
    from keeplast.service.explained import KeyAnswer
    from keeplast.store.tiered_store import TieredStore
    from keeplast.survey.report import CleanReport, Estimate, PartitionReport, RoundReport
    from keeplast.survey.request import CleanRequest, PartitionRequest

__version__ = "0.2.0"

__all__ = [
    "AttachedLogs",
    "CleanReport",
    "CleanRequest",
    "CleanerConfig",
    "CommitUnknownError",
    "CompactionError",
    "ConflictError",
    "CorruptError",
    "DirectoryLogs",
    "Erasure",
    "Estimate",
    "Export",
    "FencedError",
    "Hold",
    "InvalidError",
    "InvariantError",
    "IssuedCertificate",
    "KeyAnswer",
    "LeasedHost",
    "LiveRecord",
    "LiveState",
    "NewRecord",
    "OpenLog",
    "PartitionReport",
    "PartitionRequest",
    "RefusedError",
    "RoundReport",
    "Segment",
    "Stats",
    "StoredLogs",
    "TieredStore",
    "TopicConfig",
    "TopicPartition",
    "UnavailableError",
    "UndoReport",
    "UndoRound",
    "VerifiedCertificate",
    "__version__",
    "add_hold",
    "ask_brokers",
    "attached_state",
    "broker_settings",
    "certify",
    "clean",
    "cleaner_config",
    "erase",
    "erasure_requests",
    "explain",
    "explain_keys",
    "explain_place",
    "export",
    "exported_state",
    "forget_erasure",
    "holds",
    "host_partition",
    "kept_rounds",
    "open",
    "open_log",
    "open_store",
    "plan",
    "reapply_erasure",
    "register",
    "release_hold",
    "stored_state",
    "topic_config",
    "undo",
    "verify_certificate",
]

_HOMES = {
    "keeplast.service.explained": ("KeyAnswer",),
    "keeplast.model.hold": ("Hold",),
    "keeplast.service.erasure.certificate": ("IssuedCertificate",),
    "keeplast.api.certificate": (
        "VerifiedCertificate",
        "certify",
        "verify_certificate",
    ),
    "keeplast.api.erase": (
        "Erasure",
        "Export",
        "erase",
        "erasure_requests",
        "forget_erasure",
        "reapply_erasure",
    ),
    "keeplast.api.export": ("export",),
    "keeplast.pipeline.export": ("Export",),
    "keeplast.api.hold": (
        "add_hold",
        "holds",
        "kept_rounds",
        "release_hold",
        "undo",
    ),
    "keeplast.api.open_store": (
        "host_partition",
        "open_store",
        "stored_state",
    ),
    "keeplast.host.leased_host": ("LeasedHost",),
    "keeplast.log.append": ("NewRecord",),
    "keeplast.api.stored_logs": ("StoredLogs",),
    "keeplast.api.directory_logs": ("DirectoryLogs",),
    "keeplast.api.attached_logs": ("AttachedLogs",),
    "keeplast.config.layers": ("broker_settings",),
    "keeplast.api.attached_state": (
        "ask_brokers",
        "attached_state",
    ),
    "keeplast.api.open_log": (
        "OpenLog",
        "Segment",
        "open_log",
    ),
    "keeplast.api.explain": (
        "explain",
        "explain_keys",
        "explain_place",
    ),
    "keeplast.api.exported_state": ("exported_state",),
    "keeplast.api.live_state": (
        "LiveRecord",
        "LiveState",
    ),
    "keeplast.config.log_source": ("register",),
    "keeplast.config.mapping": (
        "cleaner_config",
        "topic_config",
    ),
    "keeplast.api.rounds": (
        "clean",
        "plan",
    ),
    "keeplast.api.open_place": ("open",),
    "keeplast.rewrite.stats": ("Stats",),
    "keeplast.run.undo": ("UndoRound",),
    "keeplast.run.undoing": ("UndoReport",),
    "keeplast.survey.report": (
        "CleanReport",
        "Estimate",
        "PartitionReport",
        "RoundReport",
    ),
    "keeplast.survey.request": (
        "CleanRequest",
        "PartitionRequest",
    ),
    "keeplast.store.tiered_store": ("TieredStore",),
    "keeplast.errors": (
        "CommitUnknownError",
        "CompactionError",
        "ConflictError",
        "CorruptError",
        "FencedError",
        "InvalidError",
        "InvariantError",
        "RefusedError",
        "UnavailableError",
    ),
    "keeplast.model.partition": ("TopicPartition",),
    "keeplast.model.topic_config": (
        "CleanerConfig",
        "TopicConfig",
    ),
}
_EXTRA_OF = {
    "pyspark": "spark",
    "pyarrow": "spark",
    "sqlalchemy": "tier",
    "alembic": "tier",
    "obstore": "s3",
    "cryptography": "cluster",
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    """Import a public name when it is first asked for."""
    if name not in _HOME_OF:
        raise AttributeError(f"module 'keeplast' has no attribute {name!r}")
    try:
        value: object = getattr(importlib.import_module(_HOME_OF[name]), name)
    except ImportError as error:
        extra = _EXTRA_OF.get((error.name or "").partition(".")[0])
        if extra is None:
            raise
        raise ImportError(
            f"keeplast.{name} needs a package that cannot be imported; install keeplast with its "
            f"extra {extra!r}{_newer(error.name)}. missing={error.name} error={error}",
            name=error.name,
        ) from None
    globals()[name] = value
    name_parameters(True)
    return value


def _newer(missing: str | None) -> str:
    """Say which PySpark is too old, where a part of it is missing."""
    found = sys.modules.get("pyspark") if (missing or "").startswith("pyspark.") else None
    return "" if found is None else f": PySpark 4.2 or newer; {found.__version__} is installed"


def __dir__() -> list[str]:
    return sorted(__all__)
