"""`import headstone as hs`, without Spark: answers are the command line's, on any thread, and the process stays as it was."""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import headstone as hs
from headstone.api.inspecting import as_table
from headstone.cli.main import main
from headstone.pipeline.failed_partition import FailedPartition
from headstone.pipeline.inspection import Inspection
from tests.cli.scenes import write_log
from tests.logs import HOLD, files_of, owner

NOW_MS = 1_800_000_000_000


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("library")
    sample = ["--records", "600", "--keys", "100", "--tombstones", "0.1", "--transactions", "0.3", "--quiet"]
    assert main(["synth", str(root / "one"), "--topic", "orders", "--partitions", "2", *sample]) == 0
    assert main(["synth", str(root / "three"), "--topic", "orders", "--replicas", "3", *sample]) == 0
    return root


def answered(capsys: pytest.CaptureFixture[str], *words: object) -> Any:
    capsys.readouterr()
    code = main([*map(str, words), "--output", "json", "--engine", "process"])
    assert code in (0, 1)
    return json.loads(capsys.readouterr().out)


def test_facts_are_those_of_inspect(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = hs.inspect(logs / "one", progress=False)
    told = answered(capsys, "inspect", logs / "one")["partitions"]
    assert isinstance(facts, pd.DataFrame)
    assert facts["partition"].tolist() == ["orders-0", "orders-1"]
    shared = [name for name in facts.columns if name in told[0] and name not in ("codecs", "notes")]
    assert {"records", "keys", "tombstones", "markers", "lso", "dirty_ratio"} <= set(shared)
    assert facts[shared].to_dict("records") == [{name: row[name] for name in shared} for row in told]
    assert facts["error"].isna().all()


def test_a_log_that_cannot_be_read_is_a_row_with_its_error(logs: Path, tmp_path: Path) -> None:
    assert main(["synth", str(tmp_path / "logs"), "--partitions", "2", "--records", "300", "--quiet"]) == 0
    log = next((tmp_path / "logs").glob("*-1/*.log"))
    log.write_bytes(log.read_bytes()[:40] + b"?" + log.read_bytes()[41:])
    facts = hs.inspect([tmp_path / "logs", logs / "one"], progress=False).set_index("partition")
    assert facts["error"].isna().to_dict() == {"sample-0": True, "orders-0": True, "orders-1": True, "sample-1": False}
    assert log.name in facts.loc["sample-1", "error"]
    assert facts.loc["sample-0", "records"] > 0


def test_an_error_is_told_as_the_command_line_tells_it() -> None:
    unreadable = FailedPartition(partition="a-0", error=OSError(errno.EIO, "Input/output error", "/a-0/0.log"))
    secret = FailedPartition(partition="b-0", error=hs.Unfinished("s3://me:hunter2@backups: no answer"))
    failed = (unreadable, secret)
    told = [failure.as_json()["error"] for failure in failed]
    assert as_table(Inspection(facts=(), failed=failed))["error"].to_pylist() == told
    assert "restore the file from a replica" in told[0]
    assert "hunter2" not in told[1]


def test_compact_is_the_verbs_own(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    settings = hs.CompactionSettings(now_ms=NOW_MS, topic_settings={"delete.retention.ms": "1ms"}, tombstones_below=300)
    done = hs.compact(None, logs / "one", out=tmp_path / "out", settings=settings, progress=False)
    words = ["--out", tmp_path / "by-verb", "--now-ms", NOW_MS, "--delete-retention-ms", "1", "--tombstones-below", 300]
    told = answered(capsys, "compact", logs / "one", *words)["partitions"]
    assert [without_seconds(row) for row in done.to_dicts()] == [without_seconds(row) for row in told]
    assert done.to_pandas()["records_after"].tolist() == [row["records_after"] for row in told]
    assert "orders-0" in done._repr_html_()
    assert files_of(tmp_path / "out") == files_of(tmp_path / "by-verb")


def without_seconds(row: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name != "seconds"}


def test_what_could_not_be_compacted_is_an_error_and_the_rest_is_done(tmp_path: Path) -> None:
    assert main(["synth", str(tmp_path / "logs"), "--partitions", "2", "--records", "300", "--quiet"]) == 0
    log = next((tmp_path / "logs").glob("*-1/*.log"))
    whole = log.read_bytes()
    log.write_bytes(whole[:40] + b"?" + whole[41:])
    again: Callable[[], hs.Compaction] = lambda: hs.compact(  # noqa: E731
        None, tmp_path / "logs", out=tmp_path / "out", progress=False
    )
    with pytest.raises(hs.PartitionsFailed) as raised:
        again()
    assert list(raised.value.errors) == ["sample-1"]
    assert [row["partition"] for row in raised.value.done.to_dicts()] == ["sample-0"]
    log.write_bytes(whole)
    finished = again()
    assert (finished.done_before, [row["partition"] for row in finished.to_dicts()]) == (("sample-0",), ["sample-1"])


def test_an_audit_is_the_verbs_own(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replicas = sorted((logs / "three").iterdir())
    audit = hs.audit(replicas, settings=hs.AuditSettings(now_ms=NOW_MS, keys=(b"k",)), progress=False)
    told = answered(capsys, "audit", *replicas, "--now-ms", NOW_MS, "--key", "k")
    assert (audit.verdict, audit.findings) == ("clean", ())
    assert {**audit.to_dict(), "command": told["command"]} == told
    assert "<html" in audit.to_html()
    assert audit.to_pandas().empty
    assert "clean: 1 partition" in audit._repr_html_()


def test_a_lake_from_beginning_to_end(logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with hs.Lake.create(tmp_path / "lake") as lake:
        parts = lake.ingest(logs / "one", progress=False)
        assert [str(part.partition) for part in parts] == ["orders-0", "orders-1"]
        assert lake.ingest(logs / "one", progress=False)[0].records == 0
        before = lake.topic("orders").table()
        run = lake.compact(settings=hs.LakeCompactionSettings(everything=True), progress=False)
        assert len(run.compacted) == 2
        after = lake.topic("orders").table()
        assert rows(before) == rows(after)
        assert len(after) == hs.inspect(logs / "one", progress=False)["keys"].sum()
        assert len(lake.topic("orders").records()) >= len(after)
        assert [row.topic for row in lake.topics()] == ["orders"]
        assert lake.status().sums.partitions == 2
        with pytest.raises(hs.UsageError, match="ordres"):
            lake.topic("ordres")
    told = answered(capsys, "lake", "status", tmp_path / "lake")
    assert told["totals"]["due"] == 0


def rows(table: pd.DataFrame) -> list[tuple[int, int, bytes, bytes]]:
    return sorted(zip(table["partition"], table["offset"], table["key"], table["value"], strict=True))


def test_a_closed_lake_refuses_every_call(logs: Path, tmp_path: Path) -> None:
    with hs.Lake.create(tmp_path / "lake") as lake:
        topic = lake.create_topic("orders")
        assert len(topic.table()) == 0
    calls: list[Callable[[], object]] = [
        lake.topics, lake.status, topic.table, topic.records, lake.__enter__, lambda: lake.topic("orders"),
        lambda: lake.create_topic("more"), lambda: lake.ingest(logs / "one", progress=False),
        lambda: lake.compact(progress=False),
    ]  # fmt: skip
    for call in calls:
        with pytest.raises(hs.UsageError, match=r"lake was closed: open it again"):
            call()
    lake.close()
    with hs.Lake(tmp_path / "lake") as again:
        assert [row.topic for row in again.topics()] == ["orders"]


OPTION = re.compile(r"(?<!\w)--\w")


def a_log_of(logs: Path) -> Path:
    return next((logs / "one").rglob("*.log"))


MISTAKES: list[tuple[Callable[[Path], object], str]] = [
    (lambda logs: hs.compact(None, logs / "one"), "say where the result goes: out DIR, in_place, or dry_run"),
    (lambda logs: hs.compact(None, logs / "one", out="x", in_place=True), "out and in_place exclude each other"),
    (lambda logs: hs.compact("spark", logs / "one", out="x"), "expected a SparkSession or None, found str"),
    (lambda logs: hs.CompactionSettings(rules="kafak"), "rules kafak: expected kafka or coordinated"),
    (lambda logs: hs.CompactionSettings(topic_settings={"delete.retention": "1"}), "did you mean delete.retention.ms?"),
    (lambda logs: hs.CompactionSettings(topic_settings={"segment.bytes": 1}), "segment.bytes is between 14 and"),
    (lambda logs: hs.IngestSettings(topic_settings={"orders": {"retention": "1"}}), "did you mean retention.ms?"),
    (lambda logs: hs.compact(None, logs / "one", out=logs / "one" / "x"), "one/x lies inside the input {logs}/one;"),
    (lambda logs: hs.compact(None, logs / "three" / "replica-1", out=a_log_of(logs)), "is a file; name a directory"),
    (lambda logs: hs.audit(bootstrap="h:99999"), "bootstrap h:99999: expected HOST:PORT"),
    (lambda logs: hs.audit(bootstrap="h:1", kafka={"linger.ms": "1"}), "the Kafka setting linger.ms means nothing to"),
    (lambda logs: hs.audit(bootstrap="h:1", kafka={"bootstrap.servers": "h:1"}), "the address is given as bootstrap"),
    (lambda logs: hs.audit([logs / "one"]), "at least two replicas"),
    (lambda logs: hs.inspect([]), "paths: expected one or more paths or URLs, found []"),
    (lambda logs: hs.compact(str(logs / "one"), None, out="x"), "paths: expected"),
    (lambda logs: hs.CompactionSettings(path="hwole"), "path hwole: expected auto, whole, shuffle"),
    (lambda logs: hs.CompactionSettings(index_keys_max=0), "index_keys_max 0: expected 1 or more"),
    (lambda logs: hs.CompactionSettings(tombstones_below=-1), "tombstones_below -1: expected 0 or more"),
    (lambda logs: hs.audit(str(logs / "one")), "replicas: expected several"),
    (lambda logs: hs.inspect(logs / "one", topics="orders"), "topics: expected several, such as ('orders',)"),
    (lambda logs: hs.CompactionSettings(topics="orders"), "topics: expected several"),
    (lambda logs: hs.IngestSettings(topics="orders"), "topics: expected several"),
    (lambda logs: hs.AuditSettings(keys=b"alice"), "keys: expected several"),
    (lambda logs: hs.inspect(5), "paths: expected one or more paths or URLs, found 5"),
    (lambda logs: hs.inspect([5]), "paths 5: expected a string or a path, found int"),
    (lambda logs: hs.inspect(""), "paths: expected one or more paths or URLs, found ''"),
    (lambda logs: hs.inspect(logs / "one", topics=[5]), "topics 5: expected a string, found int"),
    (lambda logs: hs.inspect(logs / "one", topics=5), "topics: expected several, found 5"),
    (lambda logs: hs.inspect("s3://a", store="region=x"), "store: expected a mapping, such as a dict, found a string"),
    (lambda logs: hs.inspect("s3://a", store={"secret_access_key": 7}), "secret_access_key: expected a string, found int"),
    (lambda logs: hs.compact(None, logs / "one", out=5), "out 5: expected a string or a path, found int"),
    (lambda logs: hs.compact(None, logs / "one", out="x", settings={1: 2}), "expected CompactionSettings, found dict"),
    (lambda logs: hs.audit([logs / "one"], settings=hs.CompactionSettings()), "expected AuditSettings, found Compaction"),
    (lambda logs: hs.CompactionSettings(topic_settings="retention.ms=1"), "topic_settings: expected a mapping"),
    (lambda logs: hs.IngestSettings(topic_settings={"orders": "x"}), "topic_settings, orders: expected a mapping"),
    (lambda logs: hs.IngestSettings(cleanup_policy=5), "cleanup.policy is compact, delete or compact,delete, not 5"),
    (lambda logs: hs.AuditSettings(keys=("alice",)), "keys 'alice': expected bytes, found a string"),
    (lambda logs: hs.audit(bootstrap=["a:1"]), "bootstrap ['a:1']: expected a string, found list"),
    (lambda logs: hs.audit(bootstrap="a:1", kafka="x"), "kafka: expected a mapping"),
    (lambda logs: hs.Lake(None), "lake None: expected a string or a path, found NoneType"),
    (lambda logs: hs.Lake(logs / "one", store="x"), "store: expected a mapping"),
    (lambda logs: hs.audit(), "name the log directories of the replicas, or a cluster with bootstrap="),
    (lambda logs: hs.inspect(logs / "nothing"), "no such directory"),
    (lambda logs: hs.Lake(logs / "one"), "has no lake"),
    (lambda logs: hs.Lake(logs / "nothing"), "(headstone.Lake.create in a program)"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "why"), MISTAKES, ids=[why for _, why in MISTAKES])
def test_a_mistake_is_told(
    call: Callable[[Path], object], why: str, logs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(hs.UsageError) as raised:
        call(logs)
    assert why.replace("{logs}", str(logs)) in str(raised.value)
    assert OPTION.search(str(raised.value)) is None or "program" in str(raised.value)
    assert list(tmp_path.iterdir()) == []


CLUSTER = "127.0.0.1:1"
OF_A_CLUSTER: dict[str, Callable[[Path, dict[str, str]], object]] = {
    "audit": lambda directory, kafka: hs.audit(bootstrap=CLUSTER, kafka=kafka),
    "ingest": lambda directory, kafka: hs.Lake.create(directory / "lake").ingest(bootstrap=CLUSTER, kafka=kafka),
}


@pytest.mark.parametrize("call", OF_A_CLUSTER.values(), ids=OF_A_CLUSTER)
def test_a_secret_of_a_cluster_may_be_a_reference(
    call: Callable[[Path, dict[str, str]], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PROTOCOL", "TLS")
    with pytest.raises(hs.UsageError, match=r"^security.protocol TLS: known are "):
        call(tmp_path / "1", {"security.protocol": "env:PROTOCOL"})
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "me"}
    with pytest.raises(hs.UsageError, match=r"^the environment has no PASSWORD_OF_NOBODY$"):
        call(tmp_path / "2", {**login, "sasl.password": "env:PASSWORD_OF_NOBODY"})


def test_a_call_on_any_thread_leaves_the_process_as_it_was(logs: Path) -> None:
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    frames: list[pd.DataFrame] = []
    threads = [
        threading.Thread(target=lambda: frames.append(hs.inspect(logs / "one", progress=False))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    frames.append(hs.inspect(logs / "one", progress=False))
    assert len(frames) == 4
    assert all(frame.equals(frames[0]) for frame in frames)
    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


INTERRUPTED = """
import os, signal, sys, threading
import headstone as hs
from headstone.pipeline import inspection

unsent = [signal.SIGINT]

def slow(*arguments):
    while unsent:
        os.kill(os.getpid(), unsent.pop())
    while True:
        inspection.Meter().add(0, 0)

inspection.count_partition = slow
before = signal.getsignal(signal.SIGINT)
try:
    hs.inspect(sys.argv[1], topics=["orders"], progress=False)
except KeyboardInterrupt:
    print("interrupted", signal.getsignal(signal.SIGINT) == before)
"""


def test_the_stop_button_ends_a_call(logs: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, str(logs / "one")], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "interrupted True"), done.stderr


def test_remarks_go_to_a_logger(logs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert main(["synth", str(tmp_path / "logs"), "--records", "100", "--quiet"]) == 0
    with owner(HOLD, tmp_path / "logs" / ".lock"), caplog.at_level(logging.WARNING, logger="headstone"):
        hs.inspect(tmp_path / "logs", progress=False)
    assert "a running broker holds" in caplog.text


def test_a_compaction_says_what_the_verb_says(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    write_log(tmp_path / "logs", "U N[a] T[a] | N[b]")

    def remarks(**given: Any) -> list[tuple[str, str]]:
        caplog.clear()
        out = tmp_path / f"out-{len(list(tmp_path.iterdir()))}"
        hs.compact(None, tmp_path / "logs", out=out, settings=hs.CompactionSettings(**given), progress=False)
        return [(record.levelname, record.message) for record in caplog.records]

    stays = "no watermarks (tombstones_below, markers_below or peers): no tombstone or marker goes because of its age"
    keyless = ("WARNING", "warning: orders-0: 1 record without a key dropped")
    with caplog.at_level(logging.INFO, logger="headstone"):
        assert remarks() == [("INFO", stays), keyless]
        assert remarks(markers_below=1) == [keyless]
        assert remarks(rules="kafka") == [keyless]
    assert main(["compact", str(tmp_path / "logs"), "--out", str(tmp_path / "by-verb"), "--engine", "process"]) == 0
    told = capsys.readouterr().err
    assert "no watermarks (--tombstones-below, --markers-below or --peer): no tombstone or marker goes" in told
    assert keyless[1] in told


def test_importing_is_cheap_and_names_what_there_is() -> None:
    program = (
        "import sys, headstone as hs\n"
        "heavy = {'numpy', 'numba', 'pyarrow', 'pyspark', 'sqlalchemy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert all(getattr(hs, name) is not None for name in hs.__all__)\n"
        "assert set(hs.__all__) <= set(dir(hs))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.returncode == 0, done.stderr
    with pytest.raises(AttributeError, match="has no attribute 'comapct'"):
        hs.comapct  # noqa: B018
