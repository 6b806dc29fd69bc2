"""The configuration file: defaults that flags win over, named clusters, stores by prefix, secrets by reference only."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from headstone.cli.configuration import configuration_of
from headstone.cli.connections import kafka_connection, store_settings
from headstone.cli.main import main, parsed
from headstone.cluster.connection import Connection
from headstone.errors import UsageError

CONFIGURATION = """
[defaults]
output = "json"
spark-conf = ["spark.executor.memory=4g"]

[verbs.compact]
engine = "process"
delete-retention-ms = "1s"
quiet = true

[verbs."lake read"]
view = "table"

[clusters.production]
bootstrap = "kafka-1:9092,kafka-2:9092"
"security.protocol" = "SASL_SSL"
"sasl.mechanism" = "PLAIN"
"sasl.username" = "me"
"sasl.password" = "env:KAFKA_PASSWORD"

[stores."s3://backups"]
endpoint = "http://minio:9000"
secret_access_key = "file:{secret}"

[stores."s3://backups/eu"]
region = "eu-west-1"
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """In the usual place."""
    (tmp_path / "secret").write_text("hush-1\n")
    (tmp_path / "secret").chmod(0o640)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("KAFKA_PASSWORD", "hush-2")
    (tmp_path / "headstone").mkdir()
    file = tmp_path / "headstone" / "config.toml"
    file.write_text(CONFIGURATION.format(secret=tmp_path / "secret"))
    return file


def options(*words: str, of: tuple[str, ...]) -> dict[str, object]:
    return {name: vars(parsed(words))[name] for name in of}


def test_the_file_gives_defaults_and_flags_win(file: Path) -> None:
    names = ("output", "engine", "delete_retention_ms", "quiet", "spark_conf")
    assert options("compact", "logs", of=names) == {
        "output": "json", "engine": "process", "delete_retention_ms": 1000, "quiet": True,
        "spark_conf": ["spark.executor.memory=4g"],
    }  # fmt: skip
    given = ("--output", "text", "--engine", "spark", "--delete-retention-ms", "7", "--spark-conf", "a=b")
    assert options("compact", "logs", *given, of=names) == {
        "output": "text", "engine": "spark", "delete_retention_ms": 7, "quiet": True,
        "spark_conf": ["spark.executor.memory=4g", "a=b"],
    }  # fmt: skip
    assert options("inspect", "logs", of=("output", "engine")) == {"output": "json", "engine": "auto"}
    assert options("lake", "read", "lake", "orders", of=("view", "output")) == {"view": "table", "output": "json"}


def test_another_file_may_be_named(file: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text('[verbs.compact]\nengine = "spark"\n')
    chosen = options("compact", "logs", "--config", str(other), of=("engine", "output"))
    assert chosen == {"engine": "spark", "output": "text"}


def test_a_cluster_and_a_store_are_reached_as_the_file_says(file: Path) -> None:
    arguments = parsed(["audit", "--cluster", "production", "--kafka-conf", "client.id=me"])
    assert kafka_connection(arguments) == Connection.parse(
        "kafka-1:9092,kafka-2:9092",
        {
            "security.protocol": "SASL_SSL", "sasl.mechanism": "PLAIN", "sasl.username": "me",
            "sasl.password": "hush-2", "client.id": "me",
        },
    )  # fmt: skip
    assert store_settings(arguments, "s3://backups/us/broker-1") == {
        "endpoint": "http://minio:9000",
        "secret_access_key": "hush-1",
    }
    assert store_settings(arguments, "s3://backups/eu/broker-1") == {"region": "eu-west-1"}
    assert store_settings(arguments, "s3://backups-of-others") == {}
    flags = parsed(["audit", "--store-conf", "endpoint=http://other", "s3://backups/a", "s3://backups/b"])
    assert store_settings(flags, "s3://backups/a")["endpoint"] == "http://other"


def test_a_cluster_that_is_not_named_is_refused(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "--cluster", "staging"]) == 2
    assert f"--cluster staging: {file} names production" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (
            "[verbs.compact]\nengin = 'process'",
            'verbs."compact".engin: compact does not have this option; did you mean engine?',
        ),
        ("[default]", "default: unknown; there are defaults, verbs, clusters, stores"),
        ("[defaults]\nouput = 'json'", "defaults.ouput: no verb has this option"),
        ("[defaults]\noutput = 'xml'", "defaults.output: 'xml' is not one of text, json"),
        ("[defaults]\nconfig = 'x'", "defaults.config: no verb has this option"),
        ("[verbs.compct]\noutput = 'json'", 'verbs."compct": no such verb'),
        ("[verbs.compact]\nseeds = 5", 'verbs."compact".seeds: compact does not have this option'),
        ("[verbs.compact]\nsegment-bytes = 13", 'verbs."compact".segment-bytes: 13 is not between 14 and 2147483647'),
        ("[verbs.compact]\nquiet = 1", 'verbs."compact".quiet: expected true or false'),
        ("[verbs.compact]\ntopic = 'orders'", 'verbs."compact".topic: expected a list'),
        ("[clusters.a]\n'security.protocol' = 'SSL'", "clusters.a: bootstrap is missing"),
        ("[clusters.a]\nbootstrap = 1", "clusters.a.bootstrap: expected a string"),
        ("[clusters.a]\nbootstrap = 'h:1'\n'sasl.password' = 'hush'", "clusters.a.sasl.password: a secret must be"),
        (
            "[stores.'s3://b']\nsecret_access_key = 'hush'",
            'stores."s3://b".secret_access_key: a secret must be given by',
        ),
        ("[stores.'s3://b'", "invalid TOML"),
    ],
)
def test_what_is_not_known_is_refused_with_file_and_key(
    content: str, says: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(content)
    assert main(["compact", "logs", "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert str(file) in said
    assert says in said
    assert "hush" not in said


def test_a_secret_that_is_not_where_it_should_be_is_named_and_not_shown(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KAFKA_PASSWORD")
    (tmp_path / "secret").unlink()
    arguments = parsed(["audit", "--cluster", "production"])
    with pytest.raises(
        UsageError, match=r"clusters\.production\.sasl\.password: the environment has no KAFKA_PASSWORD"
    ):
        kafka_connection(arguments)
    with pytest.raises(UsageError, match=r"secret_access_key: .*secret: No such file"):
        store_settings(arguments, "s3://backups")


def test_the_configuration_shows_no_secret(file: Path) -> None:
    configuration = configuration_of(str(file), {})
    kafka_connection(
        argparse.Namespace(configuration=configuration, cluster="production", bootstrap=None, kafka_conf=[])
    )
    assert "hush" not in repr(configuration)
