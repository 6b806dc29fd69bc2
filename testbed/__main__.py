"""Kafka for a person: `python -m testbed up` runs a cluster until Ctrl-C, `stop 2` and `start 2` in another terminal control
it; `home` and `tool` use the fetched releases.

Everything is on loopback and in a temporary directory, unless told otherwise.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from headstone.brokers.distribution import TOOL_CLASSES
from headstone.brokers.processes import Cluster
from headstone.errors import HeadstoneError
from testbed.control import ask, keep, running_file
from testbed.maven import VERSIONS, KafkaUnavailable, fetched, kafka

TOLD = {
    "stop": "stop a broker cleanly",
    "kill": "kill a broker, as kill -9",
    "start": "start a broker again (default: all that do not run)",
    "status": "which brokers run, and where",
    "bootstrap": "its addresses, for --bootstrap",
    "quit": "end all of it",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Returns 0 when done; 2 for wrong usage; 3 if there is no Kafka, or it did not start."""
    parser = argparse.ArgumentParser(prog="python -m testbed", description="Real Kafka brokers, without Docker.")
    verbs = parser.add_subparsers(dest="verb", required=True)
    up = verbs.add_parser("up", help="start a cluster and keep it until Ctrl-C")
    up.add_argument("--brokers", type=int, default=3, choices=(1, 3))
    up.add_argument(
        "--dir", help="keep the brokers' directories here; a cluster that is there already is started again"
    )
    up.add_argument("--set", metavar="K=V", action="append", default=[], help="a broker setting; may be repeated")
    for name, what in TOLD.items():
        verb = verbs.add_parser(name, help=f"of the cluster that runs: {what}")
        verb.add_argument("--dir", help="the one with this directory (default: the one that was started last)")
        if name in ("stop", "kill", "start"):
            verb.add_argument("broker", nargs="?" if name == "start" else None, help="its number")
    home = verbs.add_parser("home", help="fetch a release and print its folder, for --kafka-home")
    tool = verbs.add_parser("tool", help="run one of Kafka's own tools")
    tool.add_argument("name", choices=sorted(TOOL_CLASSES))
    tool.add_argument("arguments", nargs=argparse.REMAINDER)
    for verb in (up, home, tool):
        verb.add_argument("--version", default=VERSIONS[-1], help=f"Kafka's version (default {VERSIONS[-1]})")
    arguments = parser.parse_args(argv)
    try:
        if arguments.verb in TOLD:
            words = [arguments.verb, getattr(arguments, "broker", None)]
            answer = ask(" ".join(word for word in words if word), arguments.dir)
            print(answer, end="")
            return 3 if answer.startswith("not ") else 0
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
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    distribution = kafka(arguments.version)
    settings = dict(item.split("=", 1) for item in arguments.set)
    with tempfile.TemporaryDirectory(prefix="headstone-kafka-") as temporary:
        root = Path(arguments.dir).absolute() if arguments.dir else Path(temporary)
        print(f"starting {arguments.brokers} broker(s) of Kafka {distribution.version} in {root}", file=sys.stderr)
        cluster = Cluster(distribution, root, brokers=arguments.brokers, settings=settings)
        with ExitStack() as undo:
            undo.callback(cluster.kill)
            if not (root / "broker-1" / "logs" / "meta.properties").exists():
                cluster.format()
            cluster.start()
            for number, broker in cluster.brokers.items():
                print(
                    f"broker {number}: 127.0.0.1:{cluster.ports[number]}, process {broker.process_id}, {broker.log_dir}"
                )
            print(f"bootstrap: {cluster.bootstrap}", flush=True)
            if not arguments.dir:
                running_file().write_text(str(root))
            keep(cluster, root)


if __name__ == "__main__":
    sys.exit(main())
