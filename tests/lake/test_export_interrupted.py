"""An export that is killed before any of its steps, and the same command again: the bytes of one that nobody disturbed."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

from headstone.cli.main import main
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.lake import create_lake
from headstone.lake.transfer import export as lake_export
from headstone.lake.transfer.export_plan import PLAN_FILE, plan_of
from headstone.log import checkpoints, failpoint
from headstone.storage.access import Access
from headstone.storage.places import Place, children, place
from testbed.s3 import BUCKET
from tests.lake.scene import Scene

BOOTSTRAP = Path(__file__).parent.parent / "captured" / "bootstrap-3.9.2.checkpoint"
SERVER = multiprocessing.get_context("forkserver")
"""Children of a process that has started no thread: those of an object store's client do not outlive a fork."""
SERVER.set_forkserver_preload([__name__])
STRIDE = 2
"""Steps from one kill to the next; 1 kills before each."""
IDS = ["--topic-id", "t=AAAAAAAAQACAAAAAAAAAAQ", "--topic-id", "u=AAAAAAAAQACAAAAAAAAAAg"]


def exporting(words: list[str], step: int) -> None:
    """Every partition is a wave of its own."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    lake_export.WAVE_BYTES = -1
    os.environ[failpoint.VARIABLE] = str(step)
    failpoint._reached = 0
    os._exit(main(words))


def killed(words: list[str], step: int) -> bool:
    """False if it lived to its end."""
    child = SERVER.Process(target=exporting, args=(words, step))
    child.start()
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL)
    return child.exitcode != 0


def command(scene: Scene, *log_dirs: object, copies: int = 1) -> list[str]:
    words = [word for log_dir in log_dirs for word in ("--log-dirs", str(log_dir))]
    url = str(scene.lake.metastore._engine.url)
    return ["lake", "export", url, "u", "t", *words, *IDS, "--replication-factor", str(copies), "--quiet"]


def formatted(root: Path, count: int) -> list[Path]:
    """As kafka-storage leaves them."""
    dirs = [root / f"broker-{number}" for number in range(1, count + 1)]
    for number, log_dir in enumerate(dirs, start=1):
        log_dir.mkdir(parents=True)
        (log_dir / "meta.properties").write_text(f"version=1\nnode.id={number}\n")
        (log_dir / "bootstrap.checkpoint").write_bytes(BOOTSTRAP.read_bytes())
    return dirs


def tree(root: Place, prefix: str = "") -> dict[str, bytes]:
    """Every file by its path, but for the lock that whoever is killed leaves behind."""
    files: dict[str, bytes] = {}
    for child in (child for child in children(root) if child.name != checkpoints.LOCK):
        name = f"{prefix}{child.name}"
        files |= tree(child, f"{name}/") if child.is_dir() else {name: child.read_bytes()}
    return files


@pytest.fixture
def story(scene: Scene) -> Scene:
    """Two topics of three partitions in all, one of them empty, one of several segments."""
    scene.lake.metastore.create_topic("u", 2)
    scene.lake.metastore.configure("t", {"segment.bytes": 100})
    scene.write("N[a]", "N[b]")
    scene.write("T[a]", "I7[c]")
    return scene


def finished(log_dir: Path) -> list[str]:
    """What the plan of an export says is there for good, in all its directories."""
    if not (log_dir / PLAN_FILE).exists():
        return []
    plan = plan_of((log_dir / PLAN_FILE).read_bytes(), PLAN_FILE)
    return [str(partition) for some in plan.finished for partition in some]


def test_killed_before_any_step_the_same_command_gives_what_an_undisturbed_one_gives(
    story: Scene, tmp_path: Path
) -> None:
    dirs = formatted(tmp_path / "whole", 2)
    assert main(command(story, *dirs, copies=2)) == 0
    expected = tree(tmp_path / "whole")
    assert {f"broker-2/{name}-0/partition.metadata" for name in "tu"} < expected.keys()
    kept, snapshots = [], set()
    for step in range(1, 1000, STRIDE):
        dirs = formatted(tmp_path / "cut", 2)
        if not killed(command(story, *dirs, copies=2), step):
            break
        kept.append(len(finished(dirs[0])))
        snapshots.add(len(list((tmp_path / "cut").glob("*/__cluster_metadata-0/*.checkpoint"))))
        assert main(command(story, *dirs, copies=2)) == 0
        assert tree(tmp_path / "cut") == expected, step
        shutil.rmtree(tmp_path / "cut")
    assert sorted(set(kept)) == [0, 1, 2, 3, 4, 5, 6]
    assert 1 in snapshots  # the metadata of one broker begins with the topics already


def test_killed_in_an_object_store_it_goes_on_too(
    story: Scene, moto_settings: Mapping[str, str], tmp_path: Path
) -> None:
    store = [word for name, value in moto_settings.items() for word in ("--store-conf", f"{name}={value}")]
    root, access = f"s3://{BUCKET}/{tmp_path.name}", Access.of(moto_settings)
    assert main([*command(story, f"{root}/whole"), *store]) == 0
    expected = tree(place(f"{root}/whole", access))
    assert "u-1/partition.metadata" in expected
    for step in (1, 2, 3, 4, 5, 6, 12, 13, 17, 18):
        out = f"{root}/cut-{step}"
        assert killed([*command(story, out), *store], step)
        assert main([*command(story, out), *store]) == 0
        assert tree(place(out, access)) == expected, step


@pytest.fixture
def out(story: Scene, tmp_path: Path) -> Path:
    """Here an export was interrupted: of three partitions u-0 is there for good, u-1 is not."""
    out = tmp_path / "out"
    assert killed(command(story, out), 9)
    assert (finished(out), sorted(folder.name for folder in out.glob("*-?"))) == (["u-0"], ["u-0", "u-1"])
    return out


def replaced(scene: Scene) -> None:
    """Another record has come, and the extents that the export began with are not in use any more."""
    scene.write("N[a,b]", now_ms=5)
    scene.compact(now_ms=5)


def test_whoever_goes_on_exports_the_moment_at_which_it_began(story: Scene, out: Path, tmp_path: Path) -> None:
    assert main(command(story, tmp_path / "whole")) == 0
    replaced(story)
    assert main(command(story, out)) == 0
    assert tree(out) == tree(tmp_path / "whole")


def test_what_was_finished_is_not_written_again(story: Scene, out: Path) -> None:
    for name in ("u-0", "u-1"):
        (out / name / "mark").touch()
    assert main(command(story, out)) == 0
    assert [path.parent.name for path in out.glob("*/mark")] == ["u-0"]


def test_a_past_that_was_collected_meanwhile_is_told(
    story: Scene, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replaced(story)
    before = tree(out)
    assert len(collect(story.lake, garbage(story.lake, now_ms=10**9, grace_ms=0))) > 0
    assert main(command(story, out)) == 2
    message = capsys.readouterr().err
    assert (
        "t-0: 2 objects of its log at 1970-01-01 00:00:00 UTC (0), when the interrupted export began, removed"
        in message
    )
    assert "empty the log directories, format them and export again" in message
    assert tree(out) == before


def test_another_command_and_another_lake_are_refused(
    story: Scene, out: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tree(out)
    for words in (["--as-of", "0"], ["--topic-id", "u=AAAAAAAAQACAAAAAAAAAAw"]):
        assert main([*command(story, out), *words]) == 2
        message = capsys.readouterr().err
        assert f"finish it first, with `headstone lake export LAKE u t --log-dirs {out}" in message
    other = create_lake(f"sqlite:///{tmp_path / 'other.db'}", f"file://{tmp_path / 'others'}", now_ms=0)
    for topic in "tu":
        other.metastore.create_topic(topic, 2)
    words = command(story, out)
    words[2] = f"sqlite:///{tmp_path / 'other.db'}"
    assert main(words) == 2
    assert "was interrupted here; to start over" in capsys.readouterr().err
    assert tree(out) == before


def test_what_somebody_else_has_put_there_or_taken_away_is_told(
    story: Scene, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (out / "t-0").mkdir()
    (out / "t-0" / "00000000000000000000.log").write_bytes(b"precious")
    assert main(command(story, out)) == 2
    assert "t-0 already exists and is not overwritten" in capsys.readouterr().err
    assert (out / "t-0" / "00000000000000000000.log").read_bytes() == b"precious"
    shutil.rmtree(out / "t-0")
    shutil.rmtree(out / "u-0")
    assert main(command(story, out)) == 2
    assert "u-0 was written by the interrupted export but is gone" in capsys.readouterr().err


def test_topics_that_the_metadata_of_new_brokers_has_already_are_refused(
    story: Scene, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (log_dir,) = formatted(tmp_path, 1)
    assert main(command(story, log_dir)) == 0
    before = tree(log_dir / "__cluster_metadata-0")
    for name in ("t-0", "u-0", "u-1"):
        shutil.rmtree(log_dir / name)
    assert main(command(story, log_dir)) == 2
    assert "checkpoint already has topic t: an export ran here before" in capsys.readouterr().err
    assert (tree(log_dir / "__cluster_metadata-0"), (log_dir / "t-0").exists()) == (before, False)
