"""A marker for the passwords of the metastore and of Kafka and for the secret key of the store: nothing shows it."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from headstone.cli.main import main, parser
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample
from testbed.s3 import BUCKET
from tests.lake.databases import new_database

MARKER = "hush-marker-7d1f"
ROOT = Path(__file__).resolve().parent.parent.parent

SPARK = """
import sys
from headstone.cluster.connection import Connection, spark_source_options
from headstone.lake.transfer.ingest import ingest
from headstone.lake.lake import LakeAddress
from headstone.log.directory import find_partitions
from headstone.spark.engine import OnSpark
from headstone.spark.session import spark_session
from headstone.storage.secrets import resolved

logs, events, endpoint, jars = sys.argv[1:]
store = {"endpoint": endpoint, "region": "us-east-1", "access_key_id": "testing"}
conf = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{events}", "spark.eventLog.compress": "false"}
conf["spark.jars"] = jars
with spark_session(app_name="secrets", master="local[1]", conf=conf) as spark:
    settings = {**store, "secret_access_key": resolved("env:MARKED_KEY")}
    lake = LakeAddress(metastore_url=resolved("env:MARKED_LAKE"), store_settings=settings).open()
    ingest(lake, find_partitions([logs]), clock=lake.metastore.clock, engine=OnSpark(lambda: spark, parallelism=1))
    for view in ("records", "table"):
        frame = spark.read.format("headstone").option("topic", "again").option("view", view)
        frame = frame.option("store.secret_access_key", settings["secret_access_key"])
        frame = frame.options(**{f"store.{name}": value for name, value in store.items()}).load(resolved("env:MARKED_LAKE"))
        print(frame.count() > 0)
        frame.explain("extended")
    try:
        spark.read.format("headstone").option("topic", "none").load(resolved("env:MARKED_LAKE")).count()
    except Exception as error:
        print("refused", error)
    spark.read.format("headstone").option("topic", "again").option("store.endpoint", endpoint).option(
        "store.secret_access_key", "env:MARKED_KEY").option("store.region", "us-east-1").option(
        "store.access_key_id", "testing").load("env:MARKED_LAKE").count()
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN", "sasl.username": "me"}
    options = spark_source_options(Connection.parse("127.0.0.1:1", {**login, "sasl.password": resolved("env:MARKED_KEY")}))
    options |= {"kafka.default.api.timeout.ms": "1000", "kafka.request.timeout.ms": "500", "subscribe": "orders"}
    print("login" if "env" not in str(options) and "PlainLoginModule" in str(options) else "no login")
    frame = spark.readStream.format("kafka").options(**options).load()
    frame.explain("extended")
    query = frame.writeStream.format("noop").option("checkpointLocation", f"file://{events}-checkpoint").start()
    try:
        query.awaitTermination()
    except Exception as error:
        print("failed", error)
    print(query.status, query.recentProgress, query.exception())
    query.explain(True)
"""


@pytest.fixture
def marked_lake(postgres_url: str) -> str:
    """A database of its own, whose server lets everybody in and is told a password all the same."""
    url = new_database(postgres_url, f"lake_{uuid.uuid4().hex}")
    scheme, _, rest = url.partition("://")
    user, _, host = rest.rpartition("@")
    return f"{scheme}://{user.partition(':')[0] or 'postgres'}:{MARKER}@{host}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Marked:
    """A lake by reference, whose secrets are the marker: its metastore's URL, the words for its store, where its objects go."""

    url: str
    store: list[str]
    objects: str


@pytest.fixture
def marked(
    marked_lake: str, moto_settings: Mapping[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Marked:  # fmt: skip
    secret = tmp_path / "key"
    secret.write_text(MARKER)
    secret.chmod(0o600)
    monkeypatch.setenv("MARKED_LAKE", marked_lake)
    monkeypatch.setenv("MARKED_KEY", MARKER)
    by_file = {**moto_settings, "secret_access_key": f"file:{secret}"}
    store = [word for name, value in by_file.items() for word in ("--store-conf", f"{name}={value}")]
    return Marked(url=marked_lake, store=store, objects=f"s3://{BUCKET}/{uuid.uuid4().hex}")


def verbs_of_the_lake() -> set[str]:
    (rooms,) = (action for action in parser("lake")._actions if isinstance(action, argparse._SubParsersAction))
    (verbs,) = (
        action for action in rooms.choices["lake"]._actions if isinstance(action, argparse._SubParsersAction)
    )  # fmt: skip
    return set(verbs.choices)


def test_no_verb_shows_a_secret(marked: Marked, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    write_sample(tmp_path / "logs", SampleSettings(topic="orders", records=300, keys=40, batch_bytes=2000))
    lake, nowhere, objects = "env:MARKED_LAKE", marked.url + "-nowhere", marked.objects
    kafka = ("security.protocol=SASL_PLAINTEXT", "sasl.mechanism=PLAIN", "sasl.username=me", f"sasl.password={MARKER}",
             "socket.connection.setup.timeout.ms=1000")  # fmt: skip
    login = [word for setting in kafka for word in ("--kafka-conf", setting)]
    verbs = [
        (0, ["init", lake, "--objects", objects]), (2, ["init", lake, "--objects", objects + "x"]),
        (0, ["ingest", lake, str(tmp_path / "logs")]), (0, ["request", lake, "orders"]), (2, ["request", lake, "none"]),
        (0, ["compact", lake, "--all"]), (0, ["status", lake, "--check"]), (0, ["status", lake, "--deep"]), (0, ["mend", lake]),
        (0, ["read", lake, "orders", "--view", "table"]), (0, ["gc", lake]), (2, ["read", lake, "none"]),
        (3, ["status", nowhere]), (2, ["ingest", lake, str(tmp_path / "nothing")]),
        (2, ["ingest", lake, "--bootstrap", "127.0.0.1:1", "--topic", "orders", *login]),
        (0, ["topics", lake]), (0, ["topics", lake, "describe", "orders"]), (2, ["topics", lake, "describe", "none"]),
        (0, ["topics", lake, "create", "more", "--partitions", "1"]),
        (0, ["topics", lake, "alter", "more", "--conf", "delete.retention.ms=1"]),
        (0, ["topics", lake, "delete-records", "orders", "--partition", "0", "--before", "1", "--yes"]),
        (0, ["topics", lake, "drop", "more", "--yes"]),
        (0, ["retain", lake, "--apply"]), (3, ["retain", nowhere]), (0, ["worker", lake]), (2, ["pause", lake, "nobody"]),
        (0, ["hold", lake, "me", "--topic", "orders", "--offset", "5"]), (0, ["hold", lake, "me", "--release"]),
        (2, ["hold", lake, "me", "--topic", "none", "--offset", "5"]),
        (0, ["set-clock", lake]), (0, ["set-clock", lake, "--apply"]), (3, ["set-clock", nowhere]),
        (3, ["erase", lake, "orders", "--key", "nobody"]), (2, ["erase", lake, "none", "--key", "nobody"]),
        (1, ["prove-erased", lake, "orders", "--key", "nobody"]), (2, ["prove-erased", lake, "none", "--key", "nobody"]),
        (0, ["export", lake, "orders", "--log-dirs", str(tmp_path / "out")]),
        (2, ["export", lake, "orders", "--log-dirs", str(tmp_path / "out")]),
        (3, ["restore", lake, "orders", "--bootstrap", "127.0.0.1:1", *login]),
        (2, ["restore", lake, "none", "--bootstrap", "127.0.0.1:1", *login]),
        (0, ["gc", lake, "--apply", "--grace-ms", "0"]),
        (0, ["rebuild", lake]), (2, ["rebuild", lake, "--objects", objects + "x"]), (3, ["rebuild", nowhere]),
        (0, ["adopt", lake]), (3, ["adopt", nowhere]),
    ]  # fmt: skip
    assert {words[0] for _, words in verbs} == verbs_of_the_lake()
    said = ""
    for number, (code, words) in enumerate(verbs):
        assert main(["lake", *words, *marked.store, "--output", ("json", "text")[number % 2]]) == code, words
        shown = capfd.readouterr()
        said += shown.out + shown.err
        assert MARKER not in said, words
    assert main(["lake", "status", marked.url, "--store-conf", f"secret_access_key={MARKER}", *marked.store]) == 0
    shown = capfd.readouterr()
    assert "the password of LAKE: every user of this machine can see it; say env:NAME or file:PATH" in shown.err
    assert "--store-conf secret_access_key: every user" in shown.err
    assert MARKER not in said + shown.out + shown.err


def test_spark_shows_no_secret(
    marked: Marked, moto_settings: Mapping[str, str], connector: str, tmp_path: Path
) -> None:
    write_sample(tmp_path / "more", SampleSettings(topic="again", records=300, keys=40, batch_bytes=2000))
    assert main(["lake", "init", "env:MARKED_LAKE", "--objects", marked.objects, *marked.store]) == 0
    events = tmp_path / "events"
    events.mkdir()
    command = [sys.executable, "-c", SPARK, str(tmp_path / "more"), str(events), moto_settings["endpoint"], connector]
    run = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, env=os.environ, timeout=500)
    assert (run.returncode, run.stdout.count("True"), "refused" in run.stdout) == (0, 2, True), run.stderr
    assert ("login" in run.stdout.splitlines(), "failed" in run.stdout) == (True, True)
    logged = "".join(file.read_text(errors="replace") for file in events.rglob("*") if file.is_file())
    assert logged.count("SparkListenerJobEnd") > 2
    assert "headstone" in logged
    assert MARKER not in run.stdout + run.stderr + logged
