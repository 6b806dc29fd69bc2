"""Files of a broker stay its own: owner and mode after a compaction by somebody else. Giving files away takes root."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from headstone.errors import UsageError
from headstone.log.ownership import refuse_foreign, take_after
from headstone.retention.policy import Policy
from tests.logs import compact_here, write_log

IS_ROOT = os.geteuid() == 0
USER, GROUP = (12345, 23456) if IS_ROOT else (os.geteuid(), os.getegid())
FILE_MODE, FOLDER_MODE = 0o640, 0o750
NOW_MS = 10**6


def brokers_directory(root: Path) -> Path:
    """A stopped broker's, with a compacted topic, one that is not, and nothing readable by others."""
    for name, log in (("t-0", "P1[a] P1[a] C1 | N[a] | N[b]"), ("events-0", "N[a] | N[b]")):
        write_log(root, log, name)
    (root / "events-0" / "sub").mkdir()
    (root / "meta.properties").write_text("version=1\n")
    (root / ".kafka_cleanshutdown").write_text("{}")
    (root / "replication-offset-checkpoint").write_text("0\n2\nevents 0 9\nt 0 9\n")
    (root / "cleaner-offset-checkpoint").write_text("0\n1\nt 0 0\n")
    for path in (root, *root.rglob("*")):
        path.chmod(FOLDER_MODE if path.is_dir() else FILE_MODE)
        if IS_ROOT:
            os.chown(path, USER, GROUP)
    return root


def owners(root: Path) -> dict[str, tuple[int, int, int]]:
    found = {str(path.relative_to(root)): path.stat() for path in (root, *root.rglob("*"))}
    return {name: (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) for name, status in found.items()}


def strangers(root: Path, *, any_mode: tuple[str, ...] = ()) -> dict[str, tuple[int, int, int]]:
    """What is not the broker's as its other files are; the mode of those named is that of any new file."""
    own = {name: (USER, GROUP, FOLDER_MODE if (root / name).is_dir() else FILE_MODE) for name in owners(root)}
    found = {name: (*is_[:2], own[name][2]) if name in any_mode else is_ for name, is_ in owners(root).items()}
    return {name: is_ for name, is_ in found.items() if is_ != own[name]}


@pytest.mark.parametrize("delete", [False, True], ids=["compact", "compact,delete: all is too old"])
@pytest.mark.parametrize("in_place", [True, False], ids=["in place", "--out"])
def test_owner_and_mode_are_those_of_what_is_replaced(in_place: bool, delete: bool, tmp_path: Path) -> None:
    source = brokers_directory(tmp_path / "in")
    out = None if in_place else tmp_path / "out"
    policy = Policy(now_ms=NOW_MS, cleanup_delete=delete, retention_ms=1)
    compact_here(source, out=out, policy=policy)
    made = source if out is None else out
    logs = sorted(path.name for path in (made / "t-0").glob("*.log"))
    assert logs == [f"{base:020d}.log" for base in ((5,) if delete else (0, 4))]
    assert (made / "t-0" / f"{5:020d}.snapshot").exists()
    new = () if in_place else ("recovery-point-offset-checkpoint", "replication-offset-checkpoint")
    assert strangers(made, any_mode=(*new, ".lock", "log-start-offset-checkpoint")) == {}


def test_a_file_takes_only_the_owner_of_a_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "file").chmod(0o604)
    (tmp_path / "folder").mkdir(mode=0o700)
    if IS_ROOT:
        os.chown(tmp_path / "folder", USER, GROUP)
    take_after(tmp_path / "file", tmp_path / "folder")
    assert owners(tmp_path)["file"] == (USER, GROUP, 0o604)


def test_somebody_who_cannot_give_files_away_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_foreign(tmp_path)
    owner = tmp_path.stat().st_uid
    monkeypatch.setattr(os, "geteuid", lambda: owner + 1)
    with pytest.raises(UsageError, match=f"belongs to user {owner}, .* run as user {owner} or as root"):
        refuse_foreign(tmp_path)
