"""Nothing of ours is made in a broker's log directory: with a folder in it that is no partition, a broker does not start."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstone.cli.main import main
from headstone.errors import UsageError
from headstone.guard.ledger.journal import Journal
from headstone.lake.transfer.export_places import LogDirectory
from tests.cli.scenes import write_log

SAYS = "is the log directory of a Kafka broker"


@pytest.fixture
def broker(tmp_path: Path) -> Path:
    directory = write_log(tmp_path / "broker", "N[a] | N[b]", "served-0")
    (directory / "meta.properties").write_text("version=1\nnode.id=1\n")
    return directory


def everything(root: Path) -> list[str]:
    return sorted(path.relative_to(root).as_posix() for path in root.rglob("*"))


@pytest.mark.parametrize(
    "words",
    [
        "compact {logs} --out {broker}/compacted --engine process --all-topics",
        "compact {logs} --out {broker} --engine process --all-topics",
        "compact {logs} --out {broker}/a/b --engine process --all-topics",
        "compact {logs} --out {link}/c --engine process --all-topics",
        "synth {broker}/sample", "demo --dir {broker}/demo --engine process",
    ],
)  # fmt: skip
def test_no_verb_writes_into_a_brokers_log_directory(
    broker: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: str
) -> None:
    logs = write_log(tmp_path / "logs", "N[a] N[a] | N[b]")
    (logs / "meta.properties").write_text("version=1\nnode.id=2\n")
    (tmp_path / "link").symlink_to(broker)
    before = everything(tmp_path)
    assert main(words.format(logs=logs, broker=broker, link=tmp_path / "link").split()) == 2
    said = capsys.readouterr().err
    assert SAYS in said
    assert "it has meta.properties" in said
    assert everything(tmp_path) == before


def test_an_output_of_our_own_is_gone_on_with_although_it_looks_like_a_brokers(tmp_path: Path) -> None:
    """One with another directory of the same broker, and one that ended before its record was removed."""
    for name in ("orders", "users"):
        write_log(tmp_path / name, "N[a] N[a] | N[b]", f"{name}-0")
        (tmp_path / name / "meta.properties").write_text("version=1\nnode.id=2\n")
    out, more = tmp_path / "out", ["--engine", "process", "--all-topics"]
    for name in ("orders", "users"):
        assert main(["compact", str(tmp_path / name), "--out", str(out), *more]) == 0
    assert {"orders-0", "users-0", "meta.properties"} <= set(everything(out))
    for name in ("orders", "users"):
        (out / f"{name}-0").rename(tmp_path / f"{name}-0")
    (out / "meta.properties").write_text("version=1\nnode.id=3\n")
    assert main(["compact", str(tmp_path / "orders"), "--out", str(out), *more]) == 2
    (out / ".headstone-output").write_text('{"version": 1, "command": {}, "done": {}}')
    assert main(["compact", str(tmp_path / "orders"), "--out", str(out), *more]) == 0


def test_a_journal_makes_no_folder_in_a_brokers_log_directory(broker: Path) -> None:
    before = everything(broker)
    with pytest.raises(UsageError, match=SAYS):
        Journal.open(broker / "guard" / "journal.sqlite", cluster_id="c")
    assert everything(broker) == before


def test_an_export_is_made_in_a_brokers_log_directory_and_not_inside_one(broker: Path) -> None:
    with pytest.raises(UsageError, match=SAYS), LogDirectory(broker / "inside").held(print):
        pass
    assert not (broker / "inside").exists()
    with LogDirectory(broker).held(print):
        pass
