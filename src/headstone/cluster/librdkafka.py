"""librdkafka's clients, for what our own client does not do: topic settings, producing, consuming. The extra `kafka`.

The only file that imports it. What its clients raise becomes an error of ours, with the address and the reason (which
librdkafka reports only separately), and without secrets.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from headstone.cluster.connection import SECONDS_MAX, Connection, librdkafka_settings
from headstone.errors import Unfinished, UsageError, not_installed

GROUP = "headstone-lake"
"""Consumers must name a group; none of ours joins one or commits an offset."""


def rdkafka() -> Any:
    try:
        import confluent_kafka
        import confluent_kafka.admin
    except ImportError as error:
        raise not_installed("librdkafka's client for Python (confluent_kafka) is", "kafka") from error
    return confluent_kafka


class Clients:
    """The clients of one cluster, created when they are needed."""

    def __init__(self, connection: Connection, *, beside_spark: bool = False) -> None:
        self.connection = connection
        self.module = rdkafka()
        self._given = {"log_level": "0", **librdkafka_settings(connection, beside_spark=beside_spark)}
        self._aside = ""

    def admin(self) -> Any:
        return self._made(self.module.admin.AdminClient, {}, {})

    def producer(self) -> Any:
        """Records arrive once, in order, and none without all before it.

        Idempotence alone leaves a gap if a batch is refused for good: librdkafka takes a new epoch and continues after it. The
        guarantee against gaps does not cover records that have waited for too long, so none ever times out. A broker accepts
        any sequence of a producer that it does not know, so a second batch must not be on its way while the first may still be
        refused."""
        usual = {"linger.ms": "20", "compression.type": "lz4"}
        needed = {
            "enable.idempotence": "true", "enable.gapless.guarantee": "true", "message.timeout.ms": "0",
            "max.in.flight.requests.per.connection": "1",
        }  # fmt: skip
        return self._made(self.module.Producer, usual, needed)

    @contextmanager
    def consumer(self) -> Iterator[Any]:
        """Reads committed records, from the first one; commits no offset."""
        needed = {
            "enable.auto.commit": "false", "auto.offset.reset": "earliest", "isolation.level": "read_committed",
            "enable.partition.eof": "true",
        }  # fmt: skip
        consumer = self._made(self.module.Consumer, {"group.id": GROUP}, needed)
        try:
            yield consumer
        finally:
            consumer.close()

    def _made(self, kind: Any, usual: Mapping[str, str], needed: Mapping[str, str]) -> Any:
        for name, value in needed.items():
            if self._given.get(name, value) != value:
                raise UsageError(f"the Kafka setting {name}: {value} is needed here; leave it out")
        try:
            return kind({**usual, **self._given, **needed, "error_cb": self._heard})
        except self.module.KafkaException as error:
            raise UsageError(f"Kafka settings: {self.connection.hide(error.args[0].str())}") from error

    def _heard(self, error: Any) -> None:
        if error.code() != self.module.KafkaError._ALL_BROKERS_DOWN:
            self._aside = error.str()

    @contextmanager
    def telling(self, client: Any, what: str = "") -> Iterator[None]:
        """Call `client` inside the block. It delivers what it heard from brokers when it is polled."""
        try:
            yield
        except (self.module.KafkaException, TimeoutError) as error:
            client.poll(0)
            reason = f"no answer in {SECONDS_MAX:g} s" if isinstance(error, TimeoutError) else error.args[0].str()
            text = f"{what}{reason}" + (f" ({self._aside})" if self._aside else "")
            raise Unfinished(f"{self.connection.address}: {self.connection.hide(text)}") from error
