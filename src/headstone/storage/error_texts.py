"""The text of an error. For system errors: which file, what is wrong with it and what to do; and no secret.

Our own errors say what to do themselves. Decides nothing about exit codes.
"""

from __future__ import annotations

import errno
import os

from headstone.storage.redaction import without_secrets

_DISK_FULL = "the disk is full; make room and run again"
_NOT_ALLOWED = "permission denied; run as the user that it belongs to (on a broker's machine, the broker's)"
_OS_ADVICE = {
    errno.ENOSPC: _DISK_FULL,
    errno.EDQUOT: _DISK_FULL,
    errno.EACCES: _NOT_ALLOWED,
    errno.EPERM: _NOT_ALLOWED,
    errno.EROFS: "the file system is read-only; mount it writable, or name another place",
    errno.EIO: "the disk cannot read or write it; see the kernel's log for why, and restore the file from a replica",
    errno.EMFILE: "too many open files; raise the limit (ulimit -n)",
    errno.EISDIR: "a directory where a file is expected; move it out of the way",
    errno.ENOTDIR: "a file where a directory is expected; name a directory",
}


def error_text(error: Exception) -> str:
    """The text to show for any error."""
    return without_secrets(_os_error_text(error) if isinstance(error, OSError) else str(error))


def _os_error_text(error: OSError) -> str:
    what = _OS_ADVICE.get(error.errno or 0) or error.strerror or str(error) or type(error).__name__
    return what if error.filename is None else f"{os.fsdecode(error.filename)}: {what}"
