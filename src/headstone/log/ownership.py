"""Owner and mode of new files: those of the files they replace, so that a broker that runs as another user can use them.

Only root may give files away; other users are stopped before anything is written. Does not know what the files hold.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from headstone.errors import UsageError

ROOT = 0


def take_after(path: Path, model: Path) -> None:
    """The owner of the model, and its mode too if both are files or both are directories."""
    wanted, status = model.stat(), path.stat()
    if os.geteuid() == ROOT and (wanted.st_uid, wanted.st_gid) != (status.st_uid, status.st_gid):
        os.chown(path, wanted.st_uid, wanted.st_gid)
    if stat.S_IFMT(wanted.st_mode) == stat.S_IFMT(status.st_mode):
        os.chmod(path, stat.S_IMODE(wanted.st_mode))


def refuse_foreign(log_dir: Path) -> None:
    """Files that this user creates in another user's directory might be unreadable for its broker."""
    owner = log_dir.stat().st_uid
    if os.geteuid() not in (ROOT, owner):
        raise UsageError(
            f"{log_dir} belongs to user {owner}, and its broker may not be able to use files of user {os.geteuid()}; "
            f"run as user {owner} or as root"
        )
