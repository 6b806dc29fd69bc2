"""Kafka for a person: `python -m testbed up` gives a cluster until Ctrl-C; `home` and `tool` use the fetched releases.

Everything is on loopback and in a temporary directory, unless told otherwise.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from headstone.brokers.distribution import TOOL_CLASSES
from headstone.brokers.processes import Cluster
from headstone.errors import HeadstoneError
from testbed.maven import VERSIONS, KafkaUnavailable, fetched, kafka


def main(argv: Sequence[str] | None = None) -> int:
    """0 done; 2 wrong usage; 3 no Kafka, or it did not start."""
    parser = argparse.ArgumentParser(prog="python -m testbed", description="Real Kafka brokers, without Docker.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="start a cluster and keep it until Ctrl-C")
    up.add_argument("--brokers", type=int, default=3, choices=(1, 3))
    up.add_argument(
        "--dir", help="keep the brokers' directories here; a cluster that is there already is started again"
    )
    up.add_argument("--set", metavar="K=V", action="append", default=[], help="a broker setting; may be repeated")
    home = verbs.add_parser("home", help="fetch a release and print its folder, for --kafka-home")
    tool = verbs.add_parser("tool", help="run one of Kafka's own tools")
    tool.add_argument("name", choices=sorted(TOOL_CLASSES))
    tool.add_argument("arguments", nargs=argparse.REMAINDER)
    for verb in (up, home, tool):
        verb.add_argument("--version", default=VERSIONS[-1], help=f"Kafka's version (default {VERSIONS[-1]})")
    arguments = parser.parse_args(argv)
    try:
        if arguments.verb == "home":
            print(fetched(arguments.version))
        elif arguments.verb == "tool":
            with tempfile.TemporaryDirectory(prefix="headstone-") as config:
                print(kafka(arguments.version).tool(arguments.name, *arguments.arguments, config=Path(config)), end="")
        else:
            _up(arguments)
    except (HeadstoneError, KafkaUnavailable) as error:
        print(f"testbed: {error}", file=sys.stderr)
        return getattr(error, "exit_code", 3)
    except KeyboardInterrupt:
        pass
    return 0


def _up(arguments: argparse.Namespace) -> None:
    distribution = kafka(arguments.version)
    settings = dict(item.split("=", 1) for item in arguments.set)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="headstone-kafka-") as temporary:
        root = Path(arguments.dir).absolute() if arguments.dir else Path(temporary)
        print(f"starting {arguments.brokers} broker(s) of Kafka {distribution.version} in {root}", file=sys.stderr)
        cluster = Cluster(distribution, root, brokers=arguments.brokers, settings=settings)
        try:
            if not (root / "broker-1" / "logs" / "meta.properties").exists():
                cluster.format()
            cluster.start()
            for number, broker in cluster.brokers.items():
                print(
                    f"broker {number}: 127.0.0.1:{cluster.ports[number]}, process {broker.process_id}, {broker.log_dir}"
                )
            print(f"bootstrap: {cluster.bootstrap}", flush=True)
            print("Ctrl-C stops it", file=sys.stderr)
            while all(broker.running for broker in cluster.brokers.values()):
                time.sleep(1)
            print("a broker ended; stopping the others", file=sys.stderr)
        finally:
            cluster.stop()


if __name__ == "__main__":
    sys.exit(main())
