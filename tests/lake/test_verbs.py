"""`headstone lake` from end to end on an embedded lake, and its errors."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from sqlalchemy import create_engine, update

from headstone.brokers.processes import wait_until
from headstone.cli.main import main
from headstone.lake.jobs import folding
from headstone.lake.metastore import schema
from headstone.lake.metastore.leases import Leases
from headstone.lake.metastore.metastore import Metastore
from headstone.log.topic_partition import TopicPartition
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample

DAY_MS = 86_400_000
NOW = 1_800_000_000_000


@pytest.fixture
def sample(tmp_path: Path) -> str:
    settings = SampleSettings(topic="orders", partitions=2, records=3000, keys=400, tombstones=0.1, transactions=0.3)
    write_sample(tmp_path / "sample", settings)
    return str(tmp_path / "sample")


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["lake", *arguments, "--output", "json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_from_a_log_directory_to_a_table(tmp_path: Path, sample: str, capsys: pytest.CaptureFixture[str]) -> None:
    lake = str(tmp_path / "lake")
    told(capsys, "init", lake, "--now-ms", "0")
    ingested = told(capsys, "ingest", lake, sample, "--topic-conf", "orders:delete.retention.ms=1000")["partitions"]
    assert [one["partition"] for one in ingested] == ["orders-0", "orders-1"]
    before = told(capsys, "status", lake, "--check")
    assert (before["queue"], before["violations"]) == (["orders-0", "orders-1"], [])
    compacted = told(capsys, "compact", lake, "--now-ms", str(NOW))["partitions"]
    assert all(one["records_after"] < one["records_before"] for one in compacted)
    told(capsys, "compact", lake, "--now-ms", str(NOW + 60_000))
    after = told(capsys, "status", lake, "--check", "--now-ms", str(NOW + DAY_MS))
    assert (after["queue"], after["violations"]) == ([], [])
    partitions = after["topics"][0]["partitions"]
    assert [(one["compaction_epoch"], one["dirty_ratio"], one["tombstone_ranges"]) for one in partitions] == [
        (2, 0.0, [])
    ] * 2
    assert main(["inspect", sample, "--output", "json"]) == 0
    live = sum(one["keys"] for one in json.loads(capsys.readouterr().out)["partitions"])
    assert sum(one["records"] for one in partitions) == live
    assert main(["lake", "read", lake, "orders", "--view", "table", "--to", str(tmp_path / "t.parquet")]) == 0
    assert pq.read_table(tmp_path / "t.parquet").num_rows == live
    capsys.readouterr()
    assert main(["lake", "read", lake, "orders", "--partition", "1"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["offset"] for line in lines] == sorted(line["offset"] for line in lines)
    assert len(lines) == partitions[1]["records"]


def test_garbage_is_shown_first_and_then_deleted(
    tmp_path: Path, sample: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = str(tmp_path / "lake")
    told(capsys, "init", lake, "--now-ms", "0")
    told(capsys, "ingest", lake, sample)
    told(capsys, "compact", lake, "--now-ms", str(NOW))
    objects = {path.name for path in (tmp_path / "lake" / "objects" / "objects").rglob("*") if path.is_file()}
    assert told(capsys, "gc", lake, "--now-ms", str(NOW + 1))["objects"] == []
    planned = told(capsys, "gc", lake, "--now-ms", str(NOW + DAY_MS))
    assert (planned["applied"], len(planned["objects"])) == (False, 1)
    assert {path.name for path in (tmp_path / "lake" / "objects" / "objects").rglob("*") if path.is_file()} == objects
    told(capsys, "gc", lake, "--now-ms", str(NOW + DAY_MS), "--apply")
    left = {path.name for path in (tmp_path / "lake" / "objects" / "objects").rglob("*") if path.is_file()}
    assert objects - left == {row["object_id"] for row in planned["objects"]}
    assert told(capsys, "status", lake, "--check")["violations"] == []


def test_that_the_journal_would_be_folded_is_shown_first(
    tmp_path: Path, sample: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lake = str(tmp_path / "lake")
    told(capsys, "init", lake, "--now-ms", "0")
    told(capsys, "ingest", lake, sample)
    facts = ("journal_to_fold", "journal_folded")
    assert [told(capsys, "gc", lake)[fact] for fact in facts] == [False, 0]
    monkeypatch.setattr(folding, "OBJECTS_MIN", 1)
    assert [told(capsys, "gc", lake)[fact] for fact in facts] == [True, 0]
    assert main(["lake", "gc", lake]) == 0
    assert "the journal is to be folded; --apply does it\n" in capsys.readouterr().out
    done = told(capsys, "gc", lake, "--apply")
    assert (done["journal_to_fold"], done["journal_folded"] > 0) == (True, True)
    assert [told(capsys, "gc", lake)[fact] for fact in facts] == [False, 0]


def test_workers_are_seen_asked_and_stopped(tmp_path: Path, sample: str, capsys: pytest.CaptureFixture[str]) -> None:
    lake = str(tmp_path / "lake")
    told(capsys, "init", lake)
    told(capsys, "ingest", lake, sample, "--topic-conf", "orders:min.cleanable.dirty.ratio=1.1")
    assert told(capsys, "worker", lake, "--name", "w1")["committed"] == 0
    assert told(capsys, "request", lake, "orders", "--partition", "1")["requested"] == ["orders-1"]
    assert told(capsys, "status", lake)["queue"] == ["orders-1"]
    assert told(capsys, "worker", lake, "--name", "w1") == {"worker": "w1", "committed": 1}
    status = told(capsys, "status", lake)
    assert (status["queue"], status["workers"], status["working"]) == ([], [], {})
    assert [(row["partition"], row["worker"], row["outcome"]) for row in status["history"]] == [
        ("orders-1", "w1", "committed")
    ]
    assert main(["lake", "pause", lake, "w1"]) == 2
    assert "no worker w1" in capsys.readouterr().err


def test_a_standing_worker_finishes_when_it_is_told_to(tmp_path: Path, sample: str) -> None:
    lake = str(tmp_path / "lake")
    assert main(["lake", "init", lake]) == 0
    command = [
        sys.executable,
        "-m",
        "headstone.cli.main",
        "lake",
        "worker",
        lake,
        "--name",
        "standing",
        "--every-ms",
        "50",
    ]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = f"sqlite:///{lake}/metastore.db"
        watching = Leases(Metastore.open(url))
        wait_until(lambda: len(watching.workers()) == 1, "the worker is seen", seconds_max=60)
        assert main(["lake", "ingest", lake, sample]) == 0
        wait_until(lambda: len(watching.history()) == 2, "both partitions are compacted", seconds_max=60)
        wait_until(lambda: not watching.held(now_ms=0), "it has let go of both", seconds_max=60)
    finally:
        child.send_signal(signal.SIGTERM)
        out, _ = child.communicate(timeout=60)
    assert (child.returncode, out) == (0, "standing: 2 compactions\n")
    assert watching.workers() == []


def test_holds_bounded_passes_leveling_and_the_past(
    tmp_path: Path, sample: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = str(tmp_path / "lake")
    told(capsys, "init", lake, "--now-ms", "0")
    told(capsys, "ingest", lake, sample, "--now-ms", str(NOW), "--topic-conf", "orders:delete.retention.ms=1000")
    rows = told(capsys, "compact", lake, "--all", "--map-bytes", "4000", "--now-ms", str(NOW + 100_000))["partitions"]
    assert [one["indexed"][1] - one["indexed"][0] < one["dirty"][0][1] for one in rows] == [True, True]
    while any(one["committed"] for one in rows):
        rows = told(capsys, "compact", lake, "--all", "--map-bytes", "4000", "--now-ms", str(NOW + 100_000))[
            "partitions"
        ]
    assert told(capsys, "hold", lake, "me", "--topic", "orders", "--now-ms", str(NOW + 150_000))["held"] == [
        "orders-0",
        "orders-1",
    ]
    status = told(capsys, "status", lake, "--check", "--now-ms", str(NOW + 200_000))
    assert [(hold["reader"], hold["held_from"]) for hold in status["holds"]] == [("me", 0)] * 2
    assert (status["queue"], status["violations"]) == ([], [])
    assert main(["lake", "status", lake, "--now-ms", str(NOW + 200_000)]) == 0
    assert "held by me: orders-0 from 0" in capsys.readouterr().out
    assert told(capsys, "hold", lake, "me", "--release") == {"reader": "me", "released": 2}
    assert len(told(capsys, "status", lake, "--now-ms", str(NOW + 200_000))["queue"]) == 2
    leveled = told(capsys, "compact", lake, "--level", "--now-ms", str(NOW + 200_000))["leveled"]
    assert [one["partition"] for one in leveled] == ["orders-0", "orders-1"]
    assert main(["lake", "read", lake, "orders", "--as-of", str(NOW + 90_000)]) == 0
    then = len(capsys.readouterr().out.splitlines())
    assert main(["lake", "read", lake, "orders"]) == 0
    assert then > len(capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("flag", ["--level", "--purge"])
def test_leveling_and_purging_pass_over_a_partition_that_somebody_else_works_on(
    tmp_path: Path, sample: str, capsys: pytest.CaptureFixture[str], flag: str
) -> None:
    lake = str(tmp_path / "lake")
    told(capsys, "init", lake)
    told(capsys, "ingest", lake, sample)
    told(capsys, "compact", lake)
    metastore = Metastore.open(f"sqlite:///{lake}/metastore.db")
    assert Leases(metastore).take(TopicPartition("orders", 0), "somebody", now_ms=metastore.clock())
    assert main(["lake", "compact", lake, flag, "--output", "json"]) == 3
    answer = json.loads(capsys.readouterr().out)
    assert [one["partition"] for one in answer["leveled"]] == ["orders-1"]
    assert [(one["partition"], one["why"].split(";")[0]) for one in answer["failed"]] == [
        ("orders-0", "somebody works on it")
    ]
    Leases(metastore).release(TopicPartition("orders", 0), "somebody")
    metastore.close()
    assert [one["partition"] for one in told(capsys, "compact", lake, flag)["leveled"]] == ["orders-0", "orders-1"]


def test_one_partition_that_fails_does_not_stop_the_others(
    tmp_path: Path, sample: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = str(tmp_path / "lake")
    told(capsys, "init", lake, "--now-ms", "0")
    told(capsys, "ingest", lake, sample)
    engine = create_engine(f"sqlite:///{lake}/metastore.db")
    with engine.begin() as connection:
        first = schema.extents.c.partition_id == 1
        connection.execute(update(schema.extents).where(first).values(checksum=1))
    engine.dispose()
    assert main(["lake", "compact", lake, "--now-ms", str(NOW), "--output", "json"]) == 2
    printed = json.loads(capsys.readouterr().out)
    assert [one["partition"] for one in printed["partitions"]] == ["orders-1"]
    assert [one["partition"] for one in printed["failed"]] == ["orders-0"]


def test_damage_is_told_with_exit_code_1(tmp_path: Path, sample: str, capsys: pytest.CaptureFixture[str]) -> None:
    lake = tmp_path / "lake"
    told(capsys, "init", str(lake))
    told(capsys, "ingest", str(lake), sample)
    engine = create_engine(f"sqlite:///{lake / 'metastore.db'}")
    with engine.begin() as connection:
        connection.execute(update(schema.partitions).values(next_offset=7))
    engine.dispose()
    assert main(["lake", "status", str(lake), "--check"]) == 1
    assert "WRONG: orders-0: the last extent" in capsys.readouterr().out


def test_what_another_one_works_on_is_left_to_it(
    tmp_path: Path, sample: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`lake compact` is a worker among others: by lease, and exit 3 for what it had to leave."""
    lake = str(tmp_path / "lake")
    told(capsys, "init", lake)
    told(capsys, "ingest", lake, sample)
    store = Metastore.open(f"sqlite:///{lake}/metastore.db")
    assert Leases(store).take(TopicPartition("orders", 0), "somebody", now_ms=0)
    for more in ([], ["--all"]):
        assert main(["lake", "compact", lake, "--output", "json", *more]) == 3
        printed = json.loads(capsys.readouterr().out)
        assert [one["why"] for one in printed["failed"]] == [
            "somebody works on it; look again when that has ended, or in 1 min if it was killed"
        ]
    assert [store.partition(TopicPartition("orders", n)).compaction_epoch for n in (0, 1)] == [0, 1]
    assert Leases(store).held(now_ms=0) == {TopicPartition("orders", 0): "somebody"}
    assert main(["lake", "compact", lake]) == 3
    assert "nothing is due" not in capsys.readouterr().out
    assert main(["lake", "compact", lake, "--level"]) == 3
    assert "somebody works on it" in capsys.readouterr().err
    store.close()


def test_a_request_for_what_is_clean_says_so(tmp_path: Path, sample: str, capsys: pytest.CaptureFixture[str]) -> None:
    lake = str(tmp_path / "lake")
    told(capsys, "init", lake)
    told(capsys, "ingest", lake, sample)
    told(capsys, "compact", lake)
    assert main(["lake", "request", lake, "orders", "--partition", "1"]) == 0
    assert capsys.readouterr().out == "orders-1: nothing to do: nothing is dirty\n"
    assert told(capsys, "request", lake, "orders") == {
        "requested": [], "nothing_to_do": {"orders-0": "nothing is dirty", "orders-1": "nothing is dirty"},
    }  # fmt: skip
    assert Leases(Metastore.open(f"sqlite:///{lake}/metastore.db")).requested() == {}


def test_a_clock_is_given_from_the_beginning_or_never(
    tmp_path: Path, sample: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lake = str(tmp_path / "lake")
    told(capsys, "init", lake)
    assert main(["lake", "ingest", lake, sample, "--now-ms", str(NOW)]) == 2
    assert "uses its database's clock" in capsys.readouterr().err
    assert told(capsys, "set-clock", lake) == {"applied": False, "times_ahead": 0}
    given = str(tmp_path / "given")
    told(capsys, "init", given, "--now-ms", "5")
    told(capsys, "ingest", given, sample, "--now-ms", "7")
    assert main(["lake", "status", given, "--now-ms", "6"]) == 2
    assert " already" in capsys.readouterr().err


SECRET = "hunter2"


@pytest.mark.parametrize(
    ("url", "code", "said"),
    [
        ("postgresql://me:{secret}@127.0.0.1:port/lake", 2, "is not a metastore"),
        ("postgresql://me:{secret}@127.0.0.1:99999/lake", 2, "invalid port 99999"),
        ("postgresql://me:{secret}@127.0.0.1:1/lake", 3, "postgresql://me:***@127.0.0.1:1/lake does not answer"),
        ("postgresql://127.0.0.1:1/lake?user=me&password={secret}", 3, "127.0.0.1:1/lake?password=***&user=me"),
        ("postgresql://me:a@{secret}@127.0.0.1:1/lake", 2, "as %40"),
        (
            "postgres://me:{secret}@host/lake",
            2,
            "metastores are sqlite:///PATH or postgresql://USER@HOST:PORT/DATABASE",
        ),
        ("mysql://me:{secret}@host/lake", 2, "metastores are sqlite:///PATH or postgresql://USER@HOST:PORT/DATABASE"),
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


def test_a_server_that_says_nothing_is_given_up(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It takes connections and answers none; about ten seconds, with the address and the reason."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        started = time.monotonic()
        assert main(["lake", "status", f"postgresql://me@{address}/lake"]) == 3
        settings = [f"endpoint=http://{address}", "region=x", "access_key_id=a", f"secret_access_key={SECRET}"]
        given = [word for one in settings for word in ("--store-conf", one)]
        assert main(["lake", "init", str(tmp_path / "lake"), "--objects", "s3://bucket/prefix", *given]) == 3
        assert time.monotonic() - started < 300
    shown = capfd.readouterr().err
    assert f"postgresql://me@{address}/lake does not answer: connection timeout" in shown
    assert f"http://{address}/bucket" in shown
    assert SECRET not in shown


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("timeout=soon", "soon"),
        ("allow_http=maybe", "maybe"),
        ("nosuch=1", "nosuch"),
        ("endpoint=somewhere", "'somewhere' is not an endpoint"),
    ],
)
def test_settings_of_a_store_are_checked(
    setting: str, said: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Without a backtrace of the library below."""
    lake, objects = str(tmp_path / "lake"), ["--objects", "s3://bucket/prefix"]
    assert main(["lake", "init", lake, *objects, "--store-conf", setting]) == 2
    shown = capfd.readouterr().err
    assert said in shown
    assert "panicked" not in shown


def test_settings_of_the_connection_reach_it(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """As those of the store they made the library panic."""
    lake, objects = str(tmp_path / "lake"), ["--objects", "s3://bucket/prefix"]
    given = ["--store-conf", "allow_http=true", "--store-conf", "endpoint=http://127.0.0.1:1"]
    given += ["--store-conf", "access_key_id=a", "--store-conf", "secret_access_key=b"]
    assert main(["lake", "init", lake, *objects, *given]) == 3
    shown = capfd.readouterr().err
    assert "http://127.0.0.1:1/bucket" in shown
    assert "panicked" not in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["compact", "{lake}", "--topic", "nosuch"], "the lake has no topic nosuch; it has none"),
        (["compact", "{lake}", "--map-bytes", "1"], "a map of 1 bytes cannot hold a key; use 40 bytes or more"),
        (["worker", "{lake}", "--map-bytes", "39"], "a map of 39 bytes cannot hold a key"),
        (["status", "{tmp}/none"], "has no lake"),
        (["init", "postgresql://x/y"], "name the object storage with --objects"),
        (["init", "{tmp}/l", "--objects", "somewhere"], "s3://BUCKET/PREFIX"),
        (["read", "{lake}", "nothing"], "has no topic nothing; it has none"),
        (["ingest", "{lake}", "{tmp}/nothing"], "no such directory"),
        (["ingest", "{lake}", "{sample}", "--topic-conf", "x"], "expected TOPIC:K=V"),
        (["status", "{lake}", "--store-conf", "x"], "--store-conf x: expected K=V"),
        (["init", "{lake}"], "already contains a lake"),
        (["ingest", "{lake}"], "name what to ingest"),
        (["ingest", "{lake}", "{sample}", "--bootstrap", "127.0.0.1:1"], "name what to ingest"),
        (["ingest", "{lake}", "--bootstrap", "127.0.0.1:1"], "name the topics with --topic"),
        (
            ["ingest", "{lake}", "--bootstrap", "h:1", "--topic", "t", "--kafka-conf", "x"],
            "--kafka-conf x: expected K=V",
        ),
        (["restore", "{lake}", "nothing", "--bootstrap", "127.0.0.1:1"], "the lake has no topic nothing"),
        (["hold", "{lake}", "me"], "name what to hold"),
        (["ingest", "{lake}", "--bootstrap", "h:1", "--topic", "t", "--spark-remote", "sc://h"], "use --master"),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path, sample: str, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    lake = str(tmp_path / "lake")
    told(capsys, "init", lake)
    filled = [text.format(tmp=tmp_path, lake=lake, sample=sample) for text in arguments]
    assert main(["lake", *filled]) == 2
    assert said in capsys.readouterr().err
