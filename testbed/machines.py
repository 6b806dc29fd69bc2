"""Runs a command as if on a separate machine, as far as files go: a mount namespace with its own /tmp, and some empty folders.

Programs, Python and this repository are visible as they are; processes and the network are shared. Owns `unshare` and what is
mounted; knows nothing of what runs there. Linux only.
"""

from __future__ import annotations

import functools
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TEMPORARY = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))
FIRST_FREE_DESCRIPTOR = 3
DESCRIPTORS_MAX = 7
"""A plain shell names its descriptors with one digit."""
TRIAL_SECONDS_MAX = 30


class MachinesUnavailable(Exception):
    """Why no mount namespace can be made here, and what would allow it."""


def machine(hidden: Iterable[Path] = ()) -> list[str]:
    """The prefix of a command: it runs under the same process id, with temporary folders and `hidden` empty."""
    folders = _outermost([*TEMPORARY, *(folder.resolve() for folder in hidden)])
    return [*_unshare(), "sh", "-ec", _script(folders, _kept(folders)), "machine"]


def environment() -> dict[str, str]:
    """This process's environment, with this repository's packages in front, and temporary files where every machine has a
    folder."""
    packages = [str(ROOT / "src"), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(packages), "TMPDIR": str(TEMPORARY[0])}


def _script(folders: Sequence[Path], kept: Sequence[Path]) -> str:
    """What is needed and lies in a folder that will be empty is held open, and mounted again in its place."""
    held = {str(number): shlex.quote(str(path)) for number, path in enumerate(kept, FIRST_FREE_DESCRIPTOR)}
    lines = [f"exec {number}<{path}" for number, path in held.items()]
    lines += [f"mount -t tmpfs -o mode=1777 machine {shlex.quote(str(folder))}" for folder in folders]
    for number, path in held.items():
        lines += [f"mkdir -p {path}", f"mount -c --bind /proc/self/fd/{number} {path}", f"exec {number}<&-"]
    return "\n".join([*lines, 'exec "$@"'])


def _kept(folders: Sequence[Path]) -> list[Path]:
    needed = [ROOT, Path(sys.prefix), Path(sys.base_prefix), *_java_home(os.environ)]
    below = [path.resolve() for path in needed if any(path.resolve().is_relative_to(folder) for folder in folders)]
    kept = _outermost(below)
    assert len(kept) <= DESCRIPTORS_MAX, kept
    return kept


def _java_home(variables: Mapping[str, str]) -> list[Path]:
    java = shutil.which("java")
    homes = [Path(variables["JAVA_HOME"])] if "JAVA_HOME" in variables else []
    return [*homes, Path(java).resolve().parent.parent] if java else homes


def _outermost(folders: Iterable[Path]) -> list[Path]:
    """Without folders inside another one, and without those that do not exist."""
    there = sorted({folder for folder in folders if folder.is_dir()})
    return [folder for folder in there if not any(folder != other and folder.is_relative_to(other) for other in there)]


@functools.cache
def _unshare() -> tuple[str, ...]:
    """As root, or as root of its own user namespace."""
    refusals = []
    for command in (("unshare", "--mount"), ("unshare", "--map-root-user", "--mount")):
        reason = _refusal([*command, "mount", "-t", "tmpfs", "trial", "/tmp"])
        if reason is None:
            return command
        refusals.append(f"{' '.join(command)}: {reason}")
    raise MachinesUnavailable(f"no mount namespaces here, run as root or allow user namespaces ({'; '.join(refusals)})")


def _refusal(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TRIAL_SECONDS_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return None if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"
