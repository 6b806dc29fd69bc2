"""librdkafka's clients: who is not there is told by our own client, and settings that would change what they do are refused."""

from __future__ import annotations

import socket

import pytest

from headstone.cluster.connection import Connection
from headstone.cluster.live import LiveCluster
from headstone.errors import Unfinished, UsageError
from headstone.log.topic_partition import TopicPartition

PARTITION = TopicPartition("t", 0)


def cluster(**settings: str) -> LiveCluster:
    """Where nothing listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        bootstrap = f"127.0.0.1:{server.getsockname()[1]}"
    return LiveCluster(Connection.parse(bootstrap, {name.replace("_", "."): value for name, value in settings.items()}))


def test_who_is_not_there_is_told_at_once() -> None:
    live = cluster(socket_timeout_ms="5000")
    for question in (
        lambda: live.describe(["t"]),
        lambda: live.topic_ids(["t"]),
        lambda: live.create_topic("t", partitions=1, copies=1, settings={}),
        lambda: live.log_end(PARTITION),
        lambda: live.send(PARTITION, [], offset=0),
        lambda: live.consume(PARTITION),
    ):
        with pytest.raises(Unfinished, match="can't be reached: nothing listens there"):
            question()


def test_settings_that_librdkafka_does_not_know_are_told_without_secrets() -> None:
    given = {"security_protocol": "SASL_PLAINTEXT", "sasl_mechanism": "OAUTHBEARER"}
    live = cluster(**given, sasl_oauthbearer_client_secret="hidden", no_such_setting="hidden")
    with pytest.raises(UsageError, match=r"Kafka settings: .*no\.such\.setting") as caught:
        live.describe(["t"])
    assert "hidden" not in str(caught.value)


def test_settings_that_would_change_what_is_read_or_written_are_refused() -> None:
    """These connections are not looked at first: only librdkafka knows how."""
    given = {"security_protocol": "SSL", "enable_ssl_certificate_verification": "false"}
    with pytest.raises(UsageError, match=r"isolation\.level: read_committed is needed here; leave it out"):
        next(cluster(**given, isolation_level="read_uncommitted").consume(PARTITION))
    for setting, value, needed in (
        ("enable.idempotence", "false", "true"),
        ("enable.gapless.guarantee", "false", "true"),
        ("message.timeout.ms", "300000", "0"),
        ("max.in.flight.requests.per.connection", "5", "1"),
    ):
        with pytest.raises(UsageError, match=f"{setting}: {needed} is needed here; leave it out"):
            cluster(**given, **{setting: value}).send(PARTITION, [], offset=0)
