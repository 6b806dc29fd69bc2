"""`headstone lake` from end to end on an embedded lake, and its errors."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from sqlalchemy import update

from headstone.brokers.processes import wait_until
from headstone.cli.main import main
from headstone.lake.jobs import folding
from headstone.lake.metastore import schema
from headstone.lake.metastore.leases import Leases
from headstone.lake.metastore.metastore import Metastore
from headstone.log.topic_partition import TopicPartition
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample
from tests.lake.scene import Said

DAY_MS = 86_400_000
NOW = 1_800_000_000_000
FIRST = TopicPartition("orders", 0)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> str:
    root = tmp_path_factory.mktemp("sample")
    write_sample(
        root, SampleSettings(topic="orders", partitions=2, records=3000, keys=400, tombstones=0.1, transactions=0.3)
    )
    return str(root)


@pytest.fixture(scope="module")
def filled(sample: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("filled") / "lake"
    for words in (["init", str(root), "--now-ms", "0"], ["ingest", str(root), sample]):
        assert main(["lake", *words]) == 0
    return root


@pytest.fixture
def lake(filled: Path, tmp_path: Path) -> str:
    """The sample in a lake of its own, on a given clock."""
    return str(shutil.copytree(filled, tmp_path / "lake"))


@pytest.fixture
def metastore(lake: str) -> Iterator[Metastore]:
    with closing(Metastore.open(f"sqlite:///{lake}/metastore.db")) as opened:
        yield opened


def test_from_a_log_directory_to_a_table(
    tmp_path: Path, sample: str, said: Said, told: Said, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = str(tmp_path / "lake")
    told("init", lake, "--now-ms", "0")
    ingested = told("ingest", lake, sample, "--topic-conf", "orders:delete.retention.ms=1000")["partitions"]
    assert [one["partition"] for one in ingested] == ["orders-0", "orders-1"]
    before = told("status", lake, "--check")
    assert (before["queue"], before["violations"]) == (["orders-0", "orders-1"], [])
    compacted = told("compact", lake, "--now-ms", str(NOW))["partitions"]
    assert all(one["records_after"] < one["records_before"] for one in compacted)
    told("compact", lake, "--now-ms", str(NOW + 60_000))
    after = told("status", lake, "--check", "--now-ms", str(NOW + DAY_MS))
    assert (after["queue"], after["violations"]) == ([], [])
    partitions = after["topics"][0]["partitions"]
    facts = [(one["compaction_epoch"], one["dirty_ratio"], one["tombstone_ranges"]) for one in partitions]
    assert facts == [(2, 0.0, [])] * 2
    assert main(["inspect", sample, "--output", "json"]) == 0
    live = sum(one["keys"] for one in json.loads(capsys.readouterr().out)["partitions"])
    assert sum(one["records"] for one in partitions) == live
    said("read", lake, "orders", "--view", "table", "--to", str(tmp_path / "t.parquet"))
    assert pq.read_table(tmp_path / "t.parquet").num_rows == live
    lines = [json.loads(line) for line in said("read", lake, "orders", "--partition", "1").out.splitlines()]
    assert [line["offset"] for line in lines] == sorted(line["offset"] for line in lines)
    assert len(lines) == partitions[1]["records"]


def test_garbage_is_shown_first_and_then_deleted(lake: str, told: Said) -> None:
    def objects() -> set[str]:
        return {path.name for path in Path(lake, "objects", "objects").rglob("*") if path.is_file()}

    told("compact", lake, "--now-ms", str(NOW))
    before = objects()
    assert told("gc", lake, "--now-ms", str(NOW + 1))["objects"] == []
    planned = told("gc", lake, "--now-ms", str(NOW + DAY_MS))
    assert (planned["applied"], len(planned["objects"]), objects()) == (False, 1, before)
    told("gc", lake, "--now-ms", str(NOW + DAY_MS), "--apply")
    assert before - objects() == {row["object_id"] for row in planned["objects"]}
    assert told("status", lake, "--check")["violations"] == []


def test_that_the_journal_would_be_folded_is_shown_first(
    lake: str, said: Said, told: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = ("journal_to_fold", "journal_folded")
    assert [told("gc", lake)[fact] for fact in facts] == [False, 0]
    monkeypatch.setattr(folding, "OBJECTS_MIN", 1)
    assert [told("gc", lake)[fact] for fact in facts] == [True, 0]
    assert "the journal is to be folded; --apply does it\n" in said("gc", lake).out
    done = told("gc", lake, "--apply")
    assert (done["journal_to_fold"], done["journal_folded"] > 0) == (True, True)
    assert [told("gc", lake)[fact] for fact in facts] == [False, 0]


def test_workers_are_seen_asked_and_stopped(lake: str, said: Said, told: Said) -> None:
    told("topics", lake, "alter", "orders", "--conf", "min.cleanable.dirty.ratio=1")
    assert told("worker", lake, "--name", "w1")["committed"] == 0
    assert told("request", lake, "orders", "--partition", "1")["requested"] == ["orders-1"]
    assert told("status", lake)["queue"] == ["orders-1"]
    assert told("worker", lake, "--name", "w1") == {"worker": "w1", "committed": 1}
    status = told("status", lake)
    assert (status["queue"], status["workers"], status["working"]) == ([], [], {})
    history = [(row["partition"], row["worker"], row["outcome"]) for row in status["history"]]
    assert history == [("orders-1", "w1", "committed")]
    assert "no worker w1" in said("pause", lake, "w1", code=2).err


def test_a_standing_worker_finishes_when_it_is_told_to(tmp_path: Path, sample: str) -> None:
    lake = str(tmp_path / "lake")
    assert main(["lake", "init", lake]) == 0
    words = ["lake", "worker", lake, "--name", "standing", "--every-ms", "50"]
    child = subprocess.Popen([sys.executable, "-m", "headstone.cli.main", *words], stdout=subprocess.PIPE, text=True)
    try:
        watching = Leases(Metastore.open(f"sqlite:///{lake}/metastore.db"))
        wait_until(lambda: len(watching.workers()) == 1, "the worker is seen", seconds_max=60)
        assert main(["lake", "ingest", lake, sample]) == 0
        wait_until(lambda: len(watching.history()) == 2, "both partitions are compacted", seconds_max=60)
        wait_until(lambda: not watching.held(now_ms=0), "it has let go of both", seconds_max=60)
    finally:
        child.send_signal(signal.SIGTERM)
        out, _ = child.communicate(timeout=60)
    assert (child.returncode, out, watching.workers()) == (0, "standing: 2 compactions\n", [])


def test_holds_bounded_passes_leveling_and_the_past(tmp_path: Path, sample: str, said: Said, told: Said) -> None:
    lake = str(tmp_path / "lake")
    told("init", lake, "--now-ms", "0")
    told("ingest", lake, sample, "--now-ms", str(NOW), "--topic-conf", "orders:delete.retention.ms=1000")
    compact = ("compact", lake, "--all", "--map-bytes", "9000", "--now-ms", str(NOW + 100_000))
    rows = told(*compact)["partitions"]
    assert [one["indexed"][1] - one["indexed"][0] < one["dirty"][0][1] for one in rows] == [True, True]
    while any(one["committed"] for one in rows):
        rows = told(*compact)["partitions"]
    held = told("hold", lake, "me", "--topic", "orders", "--now-ms", str(NOW + 150_000))["held"]
    assert held == ["orders-0", "orders-1"]
    later = ("--now-ms", str(NOW + 200_000))
    status = told("status", lake, "--check", *later)
    assert [(hold["reader"], hold["held_from"]) for hold in status["holds"]] == [("me", 0)] * 2
    assert (status["queue"], status["violations"]) == ([], [])
    assert "held by me: orders-0 from 0" in said("status", lake, *later).out
    assert told("hold", lake, "me", "--release") == {"reader": "me", "released": 2}
    assert len(told("status", lake, *later)["queue"]) == 2
    leveled = told("compact", lake, "--level", *later)["leveled"]
    assert [one["partition"] for one in leveled] == ["orders-0", "orders-1"]
    then, now = (said("read", lake, "orders", *past).out for past in (("--as-of", str(NOW + 90_000)), ()))
    assert len(then.splitlines()) > len(now.splitlines())


@pytest.mark.parametrize("flag", ["--level", "--purge"])
def test_leveling_and_purging_pass_over_a_partition_that_somebody_else_works_on(
    lake: str, metastore: Metastore, told: Said, flag: str
) -> None:
    told("compact", lake)
    assert Leases(metastore).take(FIRST, "somebody", now_ms=metastore.clock())
    answer = told("compact", lake, flag, code=3)
    assert [one["partition"] for one in answer["leveled"]] == ["orders-1"]
    failed = [(one["partition"], one["why"].split(";")[0]) for one in answer["failed"]]
    assert failed == [("orders-0", "somebody works on it")]
    Leases(metastore).release(FIRST, "somebody")
    assert [one["partition"] for one in told("compact", lake, flag)["leveled"]] == ["orders-0", "orders-1"]


def test_one_partition_that_fails_does_not_stop_the_others(lake: str, metastore: Metastore, told: Said) -> None:
    with metastore.transaction() as connection:
        first = schema.extents.c.partition_id == 1
        connection.execute(update(schema.extents).where(first).values(checksum=1))
    printed = told("compact", lake, "--now-ms", str(NOW), code=2)
    assert [[one["partition"] for one in printed[key]] for key in ("partitions", "failed")] == [
        ["orders-1"],
        ["orders-0"],
    ]


def test_damage_is_told_with_exit_code_1(lake: str, metastore: Metastore, said: Said) -> None:
    with metastore.transaction() as connection:
        connection.execute(update(schema.partitions).values(next_offset=7))
    assert "WRONG: orders-0: the last extent" in said("status", lake, "--check", code=1).out


def test_what_another_one_works_on_is_left_to_it(lake: str, metastore: Metastore, said: Said, told: Said) -> None:
    """`lake compact` is a worker among others: by lease, and exit 3 for what it had to leave."""
    assert Leases(metastore).take(FIRST, "somebody", now_ms=0)
    why = "somebody works on it; look again when that has ended, or in 1 min if it was killed"
    for more in ([], ["--all"]):
        assert [one["why"] for one in told("compact", lake, *more, code=3)["failed"]] == [why]
    assert [metastore.partition(FIRST._replace(number=n)).compaction_epoch for n in (0, 1)] == [0, 1]
    assert Leases(metastore).held(now_ms=0) == {FIRST: "somebody"}
    assert "nothing is due" not in said("compact", lake, code=3).out
    assert "somebody works on it" in said("compact", lake, "--level", code=3).err


def test_a_request_for_what_is_clean_says_so(lake: str, metastore: Metastore, said: Said, told: Said) -> None:
    told("compact", lake)
    clean = "nothing is dirty"
    assert said("request", lake, "orders", "--partition", "1").out == f"orders-1: nothing to do: {clean}\n"
    assert told("request", lake, "orders") == {"requested": [], "nothing_to_do": {"orders-0": clean, "orders-1": clean}}
    assert Leases(metastore).requested() == {}


def test_a_clock_is_given_from_the_beginning_or_never(tmp_path: Path, sample: str, said: Said, told: Said) -> None:
    lake = str(tmp_path / "lake")
    told("init", lake)
    assert "uses its database's clock" in said("ingest", lake, sample, "--now-ms", str(NOW), code=2).err
    assert told("set-clock", lake) == {"applied": False, "times_ahead": 0}
    given = str(tmp_path / "given")
    told("init", given, "--now-ms", "5")
    told("ingest", given, sample, "--now-ms", "7")
    assert " already" in said("status", given, "--now-ms", "6", code=2).err


SECRET = "hunter2"
METASTORES = "metastores are sqlite:///PATH or postgresql://USER@HOST:PORT/DATABASE"


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("postgresql://me:{secret}@127.0.0.1:port/lake", 2, "is not a metastore"),
        ("postgresql://me:{secret}@127.0.0.1:99999/lake", 2, "invalid port 99999"),
        ("postgresql://me:{secret}@127.0.0.1:1/lake", 3, "postgresql://me:***@127.0.0.1:1/lake does not answer"),
        ("postgresql://127.0.0.1:1/lake?user=me&password={secret}", 3, "127.0.0.1:1/lake?password=***&user=me"),
        ("postgresql://me:a@{secret}@127.0.0.1:1/lake", 2, "as %40"),
        ("postgres://me:{secret}@host/lake", 2, METASTORES),
        ("mysql://me:{secret}@host/lake", 2, METASTORES),
        ("me:{secret}@host/lake://", 2, "is not a metastore"),
    ],
)
def test_no_password_is_shown(url: str, code: int, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    for action in (["status"], ["init", "--objects", f"memory://{url}"]):
        assert main(["lake", action[0], url.format(secret=SECRET), *action[1:]]) == code
        shown = capsys.readouterr()
        assert said in shown.err
        assert SECRET not in shown.err + shown.out
        assert "Traceback" not in shown.err


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ("timeout=soon", "soon"), ("allow_http=maybe", "maybe"), ("nosuch=1", "nosuch"),
        ("endpoint=somewhere", "'somewhere' is not an endpoint"),
        ("allow_http=true endpoint=http://127.0.0.1:1 access_key_id=a secret_access_key=b", "http://127.0.0.1:1/bucket"),
    ],
)  # fmt: skip
def test_settings_of_a_store_are_checked(
    settings: str, problem: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without a backtrace of the library below; those of the connection reach it."""
    given = [word for setting in settings.split() for word in ("--store-conf", setting)]
    code = main(["lake", "init", str(tmp_path / "lake"), "--objects", "s3://bucket/prefix", *given])
    shown = capfd.readouterr().err
    assert (code, problem in shown, "panicked" in shown) == (3 if len(given) > 2 else 2, True, False)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["compact", "{lake}", "--map-bytes", "1"], "a map of 1 bytes cannot hold a key; use 40 bytes or more"),
        (["worker", "{lake}", "--map-bytes", "39"], "a map of 39 bytes cannot hold a key"),
        (["init", "postgresql://x/y"], "name the object storage with --objects"),
        (["init", "{tmp}/l", "--objects", "somewhere"], "s3://BUCKET/PREFIX"),
        (["status", "{lake}", "--store-conf", "x"], "--store-conf x: expected K=V"),
        (["ingest", "{lake}", "{sample}", "--bootstrap", "127.0.0.1:1"], "name what to ingest"),
        (["ingest", "{lake}", "--bootstrap", "127.0.0.1:1"], "name the topics with --topic"),
        (["ingest", "{lake}", "--bootstrap", "h:1", "--topic", "t", "--kafka-conf", "x"], "--kafka-conf x: expected"),
        (["ingest", "{lake}", "--bootstrap", "h:1", "--topic", "t", "--spark-remote", "sc://h"], "use --master"),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path, lake: str, sample: str, said: Said, arguments: list[str], problem: str
) -> None:
    filled = [text.format(tmp=tmp_path, lake=lake, sample=sample) for text in arguments]
    assert problem in said(*filled, code=2).err
