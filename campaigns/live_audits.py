"""Many audits in a row of a real cluster that is healthy and busy: each must be clean.

    python -m campaigns.live_audits --kafka 4.3.1 --audits 100
    python -m campaigns.live_audits                    # every version, fifty audits each

Plain and transactional producers write all the while, cleaners run twice a second over small segments, logs begin later and
later, and leaders change. Replicas are read in small answers, so that much happens between any two. Prints a line per version;
exit code 1 if an audit ends otherwise, with what it said.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import tempfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from pathlib import Path

from headstone.brokers.processes import Cluster
from headstone.cli.main import main as headstone
from headstone.cluster import replicas
from headstone.cluster.admin import Admin
from headstone.cluster.connection import Connection
from headstone.errors import Unfinished
from headstone.log.topic_partition import TopicPartition
from testbed.maven import VERSIONS, kafka
from testbed.workloads import second_client, segment_bytes

FETCH_BYTES = 16 << 10
TOPICS = {
    "orders": {"cleanup.policy": "compact"},
    "moving": {"cleanup.policy": "compact,delete", "retention.bytes": "300000", "retention.ms": "-1"},
}
SETTINGS = {"log.retention.check.interval.ms": 500}
KEYS, VALUE = 300, b"v" * 200
LEADER_SECONDS = 4.0


class Load:
    """Until `stop`: writes records to both topics, with a plain and a transactional producer, and changes leaders."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.stop = threading.Event()
        self.written = self.moved = 0

    def write(self) -> None:
        plain, txn = second_client(self.bootstrap), second_client(self.bootstrap, **{"transactional.id": "w"})
        txn.init_transactions(60)
        while not self.stop.is_set():
            txn.begin_transaction()
            for producer in (plain, txn):
                for topic in TOPICS:
                    for _ in range(10):
                        self.written += 1
                        value = None if self.written % 7 == 0 else b"%d" % self.written + VALUE
                        key = b"k%d" % (self.written * 7919 % KEYS)
                        producer.produce(topic, partition=self.written % 2, key=key, value=value)
            txn.flush(60)
            (txn.abort_transaction if self.written % 3 == 0 else txn.commit_transaction)(60)
            self.stop.wait(0.005)
        plain.flush(60)

    def move_leaders(self) -> None:
        order = [1, 2, 3]
        partitions = [TopicPartition(topic, number) for topic in TOPICS for number in (0, 1)]
        with Admin(Connection.parse(self.bootstrap, {})) as admin:
            while not self.stop.wait(LEADER_SECONDS):
                order = [*order[1:], order[0]]
                # An election is still running, or a replica is not in sync just now: the next try comes soon.
                with suppress(Unfinished):
                    admin.reassign(dict.fromkeys(partitions, order))
                    admin.elect_preferred(partitions)
                    self.moved += 1


def audits(version: str, count: int) -> bool:
    distribution = kafka(version)
    with tempfile.TemporaryDirectory() as root, ExitStack() as stack:
        cluster = stack.enter_context(Cluster(distribution, Path(root), brokers=3, settings=SETTINGS))
        _make_topics(cluster, segment_bytes(distribution.release, 64 << 10))
        load = Load(cluster.bootstrap)
        for body in (load.write, load.move_leaders):
            thread = threading.Thread(target=body)
            thread.start()
            stack.callback(thread.join)
        stack.callback(load.stop.set)
        while load.written < 20_000:
            time.sleep(0.1)
        began, ended = time.monotonic(), Counter[int]()
        for number in range(count):
            code, output = _audit(cluster.bootstrap)
            ended[code] += 1
            if code:
                print(f"audit {number + 1} of {version} ended with {code}:\n{output}", file=sys.stderr)
        seconds = time.monotonic() - began
    result = {
        "kafka": version, "audits": count, "by_exit_code": dict(ended), "seconds": round(seconds), "written": load.written,
        "leaders_moved": load.moved,
    }  # fmt: skip
    print(json.dumps(result), flush=True)
    return ended[0] == count


def _audit(bootstrap: str) -> tuple[int, str]:
    out, err = io.StringIO(), io.StringIO()
    topics = [word for topic in TOPICS for word in ("--topic", topic)]
    with redirect_stdout(out), redirect_stderr(err):
        code = headstone(["audit", "--bootstrap", bootstrap, *topics, "--engine", "process", "--quiet"])
    return code, out.getvalue() + err.getvalue()


def _make_topics(cluster: Cluster, segments: dict[str, object]) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    quick = {"min.cleanable.dirty.ratio": "0.01", "min.insync.replicas": "1"}
    quick |= {name: str(value) for name, value in segments.items()}
    topics = [NewTopic(name, 2, 3, config={**quick, **own}) for name, own in TOPICS.items()]
    for made in admin.create_topics(topics).values():
        made.result(60)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", nargs="+", default=list(VERSIONS), help="versions (default: %(default)s)")
    parser.add_argument("--audits", type=int, default=50, help="in a row (default: %(default)s)")
    arguments = parser.parse_args()
    replicas.FETCH_BYTES = FETCH_BYTES
    return 0 if all(audits(version, arguments.audits) for version in arguments.kafka) else 1


if __name__ == "__main__":
    sys.exit(main())
