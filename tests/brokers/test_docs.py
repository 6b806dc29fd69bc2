"""The blocks of README and docs/ that name `kafka-1:9092`, pasted beside a real cluster of the newest version."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headstone.brokers.client import JavaClient
from headstone.brokers.processes import Cluster
from testbed.maven import VERSIONS, KafkaUnavailable, kafka, spark_connector
from tests.demanded import demanded
from tests.docs.pasting import BROKERS, Newcomer, fresh_environment
from tests.docs.test_pages import PAGES, on_brokers

PAGES_OF_CLUSTERS = [page for page in PAGES if on_brokers(page)]


@pytest.fixture(scope="module")
def orders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The cluster that the pages speak of: three brokers, a compacted topic `orders`."""
    with demanded(KafkaUnavailable):
        distribution = kafka(VERSIONS[-1])
    place = tmp_path_factory.mktemp("cluster")
    with Cluster(distribution, place, brokers=3) as cluster, JavaClient(distribution, place / "client") as java:
        client = java.connect(cluster.bootstrap)
        client.create_topic("orders", [[1, 2, 3]], {"cleanup.policy": "compact"})
        producer = client.producer(acks="all")
        for number in range(20):
            producer.write("orders", 0, b"k%d" % (number % 5), b"v%d" % number)
        client.wait_in_sync("orders", brokers=[1, 2, 3])
        yield cluster.bootstrap


@pytest.mark.parametrize("page", PAGES_OF_CLUSTERS)
def test_a_page_is_true_beside_a_cluster(page: str, orders: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    environment = {
        **fresh_environment(home),
        "XDG_CONFIG_HOME": str(tmp_path),
        "XDG_STATE_HOME": str(tmp_path / "state"),
    }
    (tmp_path / "headstone").mkdir()
    with demanded(KafkaUnavailable):
        settings = {"spark.jars": spark_connector(), "spark.sql.shuffle.partitions": "1"}
    conf = [f"{name}={value}" for name, value in settings.items()]
    (tmp_path / "headstone" / "config.toml").write_text(f"[defaults]\nspark-conf = {conf}\n")
    (home / "empty").mkdir()
    who = Newcomer(directory=home / "empty", addresses={BROKERS: orders}, environment=environment)
    wrong = [text for block in on_brokers(page) for text in who.paste(block, in_process=False)]
    assert not wrong, "\n\n".join(wrong)
