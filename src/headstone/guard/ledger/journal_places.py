"""Which journal is meant, the one that is named or the usual one of the cluster, and who may begin one.

Of the cluster only its id is asked. What is in a journal is `journal.py`'s.
"""

from __future__ import annotations

import os
from pathlib import Path

from headstone.cluster.admin import Admin
from headstone.errors import Unfinished, UsageError
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_file import usual_journal


def open_journal(admin: Admin, named: Path | None) -> Journal:
    """Of a cluster that is guarded: begun if it is not there."""
    path, cluster_id = journal_place(admin, named)
    return Journal.open(path, cluster_id=cluster_id)


def journal_place(admin: Admin, named: Path | None) -> tuple[Path, str]:
    """And the cluster's id."""
    cluster_id = admin.describe([]).cluster_id
    if not cluster_id:
        raise Unfinished("the cluster does not report its ID, which the journal needs")
    return named or usual_journal(cluster_id, os.environ), cluster_id


def open_known(cluster_id: str, named: Path | None) -> Journal:
    """One that is there: to ask does not begin one."""
    path = named or usual_journal(cluster_id, os.environ)
    if not path.exists():
        raise UsageError(
            f"{path}: no journal of cluster {cluster_id}: no guard has run here for it; name another with --journal"
        )
    return Journal.open(path, cluster_id=cluster_id)


def open_without_cluster(named: Path | None, why: Unfinished) -> Journal:
    if named is None:
        raise Unfinished(
            f"{why}; the journal also shows what is held: name it with --journal FILE (usually in "
            "~/.local/state/headstone/guard)"
        )
    return Journal.open(named, cluster_id=None)


def open_if_there(admin: Admin, named: Path | None) -> Journal | None:
    """None is made where there is none: nothing was learnt yet."""
    cluster_id = admin.describe([]).cluster_id
    path = named or usual_journal(cluster_id, os.environ)
    if named is None and not path.exists():
        return None
    return Journal.open(path, cluster_id=cluster_id if path.exists() else None)
