"""Opens the journal that is meant: the named file or the cluster's usual one. Decides whether a missing one is created.

Asks the cluster only for its id. `journal.py` owns what is in a journal.
"""

from __future__ import annotations

import os
from pathlib import Path

from headstone.cluster.admin import Admin
from headstone.errors import Unfinished, UsageError
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_file import usual_journal


def open_journal(admin: Admin, named: Path | None) -> Journal:
    """For guarding the cluster: created if it does not exist."""
    path, cluster_id = journal_place(admin, named)
    return Journal.open(path, cluster_id=cluster_id)


def journal_place(admin: Admin, named: Path | None) -> tuple[Path, str]:
    """The path of the journal, and the cluster's id."""
    cluster_id = admin.describe([]).cluster_id
    if not cluster_id:
        raise Unfinished("the cluster does not report its ID, which the journal needs")
    return named or usual_journal(cluster_id, os.environ), cluster_id


def open_known(cluster_id: str, named: Path | None) -> Journal:
    """Raises UsageError if there is no journal: asking a question does not create one."""
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
    """None if no journal is named and the usual one does not exist: nothing was learnt yet."""
    cluster_id = admin.describe([]).cluster_id
    path = named or usual_journal(cluster_id, os.environ)
    if named is None and not path.exists():
        return None
    return Journal.open(path, cluster_id=cluster_id if path.exists() else None)
