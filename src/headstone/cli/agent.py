"""`headstone agent --log-dirs DIR... --guard URL`: beside a broker, tells the guard how far its replicas really are cleaned.

Reads the log directories and writes nothing. Runs until it is stopped; whatever fails is told on stderr and tried again.
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from headstone.cli.options import report_interval_ms
from headstone.cli.output import Output
from headstone.cli.parsing import DONE, UNFINISHED
from headstone.cli.stopping import signals_heard
from headstone.errors import Unfinished, UsageError
from headstone.storage.secrets import resolved

if TYPE_CHECKING:
    from headstone.guard.agent import Agent
    from headstone.guard.report_client import GuardClient
    from headstone.guard.reports import BrokerReport, Receipt

EXAMPLES = (
    "headstone agent --log-dirs /var/lib/kafka/data --guard http://guard:9464 --token file:/etc/headstone/token",
    "headstone agent --log-dirs /disk-1/kafka /disk-2/kafka --guard https://guard:9464 --tls-ca ca.pem --tls-cert broker-1.pem "
    "--tls-key broker-1.key",
    "headstone agent --log-dirs /var/lib/kafka/data --print",
)
EXIT_CODES = {
    DONE: "reported once, or stopped",
    UNFINISHED: "with --once: the guard did not take the report",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-dirs",
        nargs="+",
        required=True,
        metavar="DIR",
        help="all of the broker's log.dirs; a comma may divide them",
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--guard", metavar="URL", help="where `headstone guard --agents` listens: http or https://HOST:PORT"
    )
    where.add_argument(
        "--print",
        action="store_true",
        help="write one report to stdout, of the topics that are compacted, and send nothing",
    )
    parser.add_argument(
        "--token", metavar="REF",
        help="the guard's, as env:NAME or file:PATH; it signs every report and is never sent (default: none, by certificate)",
    )  # fmt: skip
    parser.add_argument(
        "--tls-ca", metavar="FILE", help="authority of the guard's certificate, PEM (default: whom the system trusts)"
    )
    parser.add_argument(
        "--tls-cert", metavar="FILE",
        help="this agent's certificate, PEM; one that names broker-N speaks for broker N only (default: none)",
    )  # fmt: skip
    parser.add_argument("--tls-key", metavar="FILE", help="the key of --tls-cert, PEM (default: in --tls-cert)")
    parser.add_argument(
        "--interval", type=report_interval_ms, default=10_000, metavar="TIME",
        help="between two reports, in ms or as 30s or 5m (default 10s)",
    )  # fmt: skip
    parser.add_argument(
        "--once", action="store_true",
        help="report once, to try it out; the guard relies only on agents that stay",
    )  # fmt: skip


def run(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.guard.agent import Agent

    agent = Agent(_log_dirs(arguments), clock=_now_ms, remark=output.warn, interval_ms=arguments.interval)
    if arguments.print:
        from headstone.guard.reports import document

        report = agent.unasked()
        output.answer(lambda: document(report), _lines(report))
        return DONE
    client = _client(arguments)
    if arguments.once:
        receipt = agent.tell(client)
        output.answer(lambda: {"broker": agent.identity.broker, "taken": receipt.taken, "left": list(receipt.left)},
                      _receipt_lines(receipt))  # fmt: skip
        return DONE
    _run_until_stopped(agent, client, arguments.interval, output)
    return DONE


def _log_dirs(arguments: argparse.Namespace) -> list[Path]:
    paths = [Path(name) for given in arguments.log_dirs for name in given.split(",") if name]
    for path in paths:
        if not path.is_dir():
            raise UsageError(f"--log-dirs {path}: no such directory")
    return paths


def _client(arguments: argparse.Namespace) -> GuardClient:
    from headstone.guard.authentication import TlsFiles
    from headstone.guard.report_client import GuardAddress, GuardClient

    tls = TlsFiles(certificate=arguments.tls_cert, key=arguments.tls_key, authority=arguments.tls_ca)
    token = None if arguments.token is None else resolved(arguments.token)
    return GuardClient(GuardAddress(url=arguments.guard, token=token, tls=tls))


def _run_until_stopped(agent: Agent, client: GuardClient, interval_ms: int, output: Output) -> None:
    """A guard that does not answer is told of once, and when it answers again."""
    stopped = threading.Event()
    said: str | None = None
    with signals_heard(lambda count: stopped.set()):
        while not stopped.is_set():
            try:
                receipt = agent.tell(client)
                text = f"broker {agent.identity.broker}: the guard takes the reports of {receipt.taken} replicas"
            except Unfinished as error:
                text = f"{error}; tried again every {interval_ms // 1000} s"
            if text != said:
                output.tell(text)
                said = text
            stopped.wait(interval_ms / 1000)


def _lines(report: BrokerReport) -> Iterator[str]:
    yield f"broker {report.broker} of cluster {report.cluster_id}: {len(report.replicas)} replicas of compacted topics"
    for replica in report.replicas:
        yield (
            f"{replica.partition}: log {replica.log_start} to {replica.log_end}, "
            f"MCCO {replica.mcco} (clean below), MXFO {replica.mxfo} (no transactional data below)"
        )


def _receipt_lines(receipt: Receipt) -> Iterator[str]:
    yield f"the guard took the reports of {receipt.taken} replicas"
    yield from receipt.left


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
