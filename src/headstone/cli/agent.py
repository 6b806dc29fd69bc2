"""`headstone agent --log-dirs DIR... --guard URL`: runs beside a broker, and reports to the guard how far its replicas are
cleaned.

Reads the log directories and writes nothing. Runs until it is stopped; failures are reported on stderr and tried again.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from headstone.agent.defaults import REPORT_EVERY_MS
from headstone.api.stopping import soft_stop
from headstone.cli.options import report_interval_ms
from headstone.cli.output import Output
from headstone.cli.parsing import DONE, UNFINISHED
from headstone.errors import UsageError
from headstone.storage.secrets import resolved
from headstone.units import count, moment

if TYPE_CHECKING:
    from headstone.agent.client import GuardClient
    from headstone.agent.messages import Receipt

EXAMPLES = (
    "headstone agent --log-dirs /var/lib/kafka/data --guard http://guard:9465 --token file:/etc/headstone/token",
    "headstone agent --log-dirs /disk-1/kafka /disk-2/kafka --guard https://guard:9465 --tls-ca ca.pem --tls-cert broker-1.pem "
    "--tls-key broker-1.key",
    "headstone agent --log-dirs /var/lib/kafka/data --print",
)
EXIT_CODES = {
    DONE: "reported once, or stopped",
    UNFINISHED: "with --once: the guard did not accept the report",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-dirs",
        nargs="+",
        required=True,
        metavar="DIR",
        help="all of the broker's log.dirs, separated by spaces or commas",
    )
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument(
        "--guard", metavar="URL", help="address of `headstone guard --agents`: http://HOST:PORT or https://HOST:PORT"
    )
    where.add_argument(
        "--print",
        action="store_true",
        help="print one report on the compacted topics and send nothing",
    )
    parser.add_argument(
        "--token", metavar="REF",
        help="shared token, env:NAME or file:PATH; it signs reports and is never sent (default: none; use --tls-cert)",
    )  # fmt: skip
    parser.add_argument(
        "--tls-ca", metavar="FILE", help="CA of the guard's certificate, PEM (default: the system's CAs)"
    )
    parser.add_argument(
        "--tls-cert", metavar="FILE",
        help="this agent's certificate, PEM; a certificate for broker-N is accepted for broker N only (default: none)",
    )  # fmt: skip
    parser.add_argument(
        "--tls-key", metavar="FILE", help="private key of --tls-cert, PEM (default: read from --tls-cert)"
    )
    parser.add_argument(
        "--interval", type=report_interval_ms, default=REPORT_EVERY_MS, metavar="DURATION",
        help="time between reports",
    )  # fmt: skip
    parser.add_argument(
        "--once", action="store_true",
        help="report once, as a test; the guard relies only on agents that keep running",
    )  # fmt: skip


def run(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.agent.agent import Agent

    stays = not arguments.print and not arguments.once
    remark = partial(_warn_with_time, output) if stays else output.warn
    agent = Agent(_log_dirs(arguments), clock=_now_ms, remark=remark, interval_ms=arguments.interval)
    if arguments.print:
        from headstone.agent.messages import document, report_lines

        report = agent.unasked()
        output.answer(lambda: document(report), report_lines(report))
        return DONE
    client = _client(arguments)
    if arguments.once:
        receipt = agent.tell(client)
        output.answer(lambda: {"broker": agent.identity.broker, "taken": receipt.taken, "left": list(receipt.left)},
                      _receipt_lines(receipt))  # fmt: skip
        return DONE
    with soft_stop(None) as stop:
        agent.stay(client, stop, lambda text: output.tell(f"{moment(_now_ms())} {text}"))
    return DONE


def _log_dirs(arguments: argparse.Namespace) -> list[Path]:
    paths = [Path(name) for given in arguments.log_dirs for name in given.split(",") if name]
    for path in paths:
        if not path.is_dir():
            raise UsageError(f"--log-dirs {path}: no such directory")
    return paths


def _client(arguments: argparse.Namespace) -> GuardClient:
    from headstone.agent.authentication import TlsFiles
    from headstone.agent.client import GuardAddress, GuardClient

    tls = TlsFiles(certificate=arguments.tls_cert, key=arguments.tls_key, authority=arguments.tls_ca)
    token = None if arguments.token is None else resolved(arguments.token)
    return GuardClient(GuardAddress(url=arguments.guard, token=token, tls=tls))


def _warn_with_time(output: Output, line: str) -> None:
    output.warn(f"{moment(_now_ms())} {line}")


def _receipt_lines(receipt: Receipt) -> Iterator[str]:
    yield f"the guard took the reports of {count(receipt.taken, 'replica')}"
    yield from receipt.left


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
