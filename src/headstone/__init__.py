"""Headstone keeps compacted Kafka topics small and correct.

    import headstone as hs

    hs.inspect("s3://backups/broker-1")               # exact facts, a row for each partition
    hs.compact(spark, "backup", out="compacted")      # one compaction of every partition found
    hs.audit(["broker-1", "broker-2", "broker-3"])    # do the replicas tell readers the same story?
    hs.Lake("mylake").topic("orders").table(spark)    # topics in object storage

docs/python.md has examples. The names in `__all__` are public, with the values that they return; everything else may change.
Importing this is cheap: a name is loaded when it is first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from headstone.api.auditing import Audit, audit
    from headstone.api.compacting import Compaction, compact
    from headstone.api.inspecting import inspect
    from headstone.api.lake import Lake, Topic
    from headstone.api.settings import AuditSettings, CompactionSettings, IngestSettings
    from headstone.errors import CorruptLog, HeadstoneError, PartitionsFailed, Unfinished, UsageError
    from headstone.lake.jobs.compact_run import LakeCompactionSettings

__version__ = "0.1.0"
__all__ = [
    "Audit",
    "AuditSettings",
    "Compaction",
    "CompactionSettings",
    "CorruptLog",
    "HeadstoneError",
    "IngestSettings",
    "Lake",
    "LakeCompactionSettings",
    "PartitionsFailed",
    "Topic",
    "Unfinished",
    "UsageError",
    "audit",
    "compact",
    "inspect",
]

_HOMES = {
    "api.auditing": ("Audit", "audit"),
    "api.compacting": ("Compaction", "compact"),
    "api.inspecting": ("inspect",),
    "api.lake": ("Lake", "Topic"),
    "api.settings": ("AuditSettings", "CompactionSettings", "IngestSettings"),
    "errors": ("CorruptLog", "HeadstoneError", "PartitionsFailed", "Unfinished", "UsageError"),
    "lake.jobs.compact_run": ("LakeCompactionSettings",),
}


if not TYPE_CHECKING:  # a type checker knows the names, and reports missing ones

    def __getattr__(name: str) -> object:
        for module, names in _HOMES.items():
            if name in names:
                return getattr(importlib.import_module(f"headstone.{module}"), name)
        raise AttributeError(f"module 'headstone' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
