"""`headstone guard`: keeps the promise of coordinated compaction on a live cluster, and says what it holds and why.

Without an action it watches. The actions are in `guard_watch.py` (the loop, `status`, `release`), `guard_check.py` and
`guard_readmit.py`; each is imported when it is used. Dry run unless --apply.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Mapping
from pathlib import Path

from headstone.cli.connections import add_cluster_arguments
from headstone.cli.options import (
    HostPort,
    RecordName,
    Share,
    add_topic_argument,
    broker_number,
    deadline_ms,
    duration_ms,
    interval_ms,
    partition_count,
    partition_number,
    positive,
)
from headstone.cli.output import Output
from headstone.cli.parsing import FINDINGS, add_output_arguments, explain, sentence, shown_default
from headstone.cluster.defaults import BYTES_PER_SECOND
from headstone.coordination.danger import Margins
from headstone.guard.defaults import PARTITIONS_AT_ONCE

MARGINS = Margins()
CLUSTER_DEFAULT, READMISSION = "cluster-default", "readmission"
EXAMPLES = (
    "headstone guard --bootstrap kafka-1:9092,kafka-2:9092",
    "headstone guard --bootstrap kafka-1:9092 --apply --metrics 127.0.0.1:9464",
    "headstone guard --cluster production --topic orders --apply --once",
    "headstone guard --bootstrap kafka-1:9092 --apply --agents 10.0.0.7:9465 --agents-token file:/etc/headstone/token",
)


def run(arguments: argparse.Namespace, output: Output) -> int:
    module, _, function = arguments.body.partition(".")
    return int(getattr(importlib.import_module(f"headstone.cli.{module}"), function)(arguments, output))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_cluster_arguments(parser, what="the cluster to guard")
    add_topic_argument(parser, "watch only this compacted topic")
    parser.add_argument("--apply", action="store_true", help="apply the changes (default: only show them)")
    parser.add_argument(
        "--once", action="store_true", help="look once and exit, for cron (default: until SIGTERM or Ctrl-C)"
    )
    parser.add_argument(
        "--allow", action="append", default=[], choices=(CLUSTER_DEFAULT, READMISSION),
        help="cluster-default: hold by the brokers' default if automation reverts a topic's hold; readmission: "
        "re-replicate a replica that may be wrong, by removing it from the assignment and adding it again; may be repeated",
    )  # fmt: skip
    _add_pace(parser)
    _add_journal(parser)
    parser.add_argument(
        "--metrics",
        type=HostPort(),
        metavar="HOST:PORT",
        help="serve Prometheus metrics at this address (default: none)",
    )
    _add_agents(parser)
    _add_margins(parser)
    add_output_arguments(parser)
    explain(parser, EXAMPLES, {FINDINGS: "--once: an alarm is raised; someone must act"})
    parser.set_defaults(run=run, body="guard_watch.watch")
    _add_actions(parser)


def _add_journal(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--journal", type=Path, metavar="FILE",
        help="the guard's state, an SQLite file (default: $XDG_STATE_HOME/headstone/guard/CLUSTER-ID.sqlite)",
    )  # fmt: skip


def _add_pace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--partitions-at-once", type=partition_count, default=PARTITIONS_AT_ONCE, metavar="N",
        help="maximum concurrent re-replications in readmissions",
    )  # fmt: skip
    parser.add_argument(
        "--throttle", type=positive, default=BYTES_PER_SECOND, metavar="N",
        help="maximum re-replication rate of a broker in a readmission, in bytes per second",
    )  # fmt: skip


def _add_agents(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("agents beside brokers: headstone agent")
    group.add_argument(
        "--agents",
        type=HostPort(),
        metavar="HOST:PORT",
        help="accept reports at this address (default: none are accepted)",
    )
    group.add_argument(
        "--agents-token", metavar="REF",
        help="token that signs their reports, as env:NAME or file:PATH (default: none; use --agents-tls-ca)",
    )  # fmt: skip
    group.add_argument(
        "--agents-tls-cert", metavar="FILE", help="serve TLS with this certificate, PEM (default: plaintext)"
    )
    group.add_argument(
        "--agents-tls-key", metavar="FILE", help="its private key, PEM (default: read from --agents-tls-cert)"
    )
    group.add_argument(
        "--agents-tls-ca", metavar="FILE",
        help="require client certificates of this CA, PEM; a certificate for broker-N is accepted for broker N only "
        "(default: none required)",
    )  # fmt: skip


def _add_margins(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("safety margins, see docs/guard.md")
    group.add_argument(
        "--poll-ms",
        type=interval_ms,
        default=MARGINS.poll_ms,
        metavar="DURATION",
        help="time between looks at the cluster",
    )
    group.add_argument(
        "--metadata-age-ms", type=duration_ms, default=MARGINS.metadata_age_ms, metavar="DURATION",
        help="maximum age of the metadata in a broker's answer",
    )  # fmt: skip
    group.add_argument(
        "--clock-skew-ms", type=duration_ms, default=MARGINS.skew_ms, metavar="DURATION",
        help="clock skew between brokers beyond what was measured",
    )  # fmt: skip
    group.add_argument(
        "--effect-ms", type=duration_ms, default=MARGINS.effect_ms, metavar="DURATION",
        help="time for a hold to reach the last broker",
    )  # fmt: skip
    group.add_argument(
        "--pass-start-ms", type=duration_ms, default=MARGINS.pass_start_ms, metavar="DURATION",
        help="how late a cleaner may start a pass that it chose before the hold",
    )  # fmt: skip
    group.add_argument(
        "--slack-share", type=Share(), default=MARGINS.slack_share, metavar="X",
        help="hold when this share of the time until the first unsafe removal has passed",
    )  # fmt: skip
    group.add_argument(
        "--robot-ms", type=duration_ms, default=MARGINS.robot_ms, metavar="DURATION",
        help="treat a hold that is reverted within this time as reverted by automation, not by a person; set it longer than "
        "the automation's interval",
    )  # fmt: skip


def _add_actions(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=False, metavar="[ACTION]")
    status = _action(
        actions, "status", "show which replicas block what, countdowns, holds and their reasons, and what to do",
        "guard_watch.status",
        "--bootstrap kafka-1:9092", "--bootstrap kafka-1:9092 --output json",
        exit_codes={FINDINGS: "an alarm is raised; someone must act"},
    )  # fmt: skip
    status.add_argument(
        "--record", type=RecordName.parse, action="append", default=[], metavar="TOPIC-PARTITION@OFFSET",
        help="show which replicas still have this record, by their agents' reports, such as a tombstone; may be repeated",
    )  # fmt: skip
    _add_journal(status)
    undo = _action(
        actions, "release", "show how to undo holds and restore the original settings; with --apply, do it",
        "guard_watch.release",
        "--bootstrap kafka-1:9092", "--bootstrap kafka-1:9092 --topic orders --apply",
    )  # fmt: skip
    add_topic_argument(undo, "only the hold of this topic")
    undo.add_argument("--apply", action="store_true", help="apply the changes (default: only show them)")
    _add_journal(undo)
    _add_readmit(actions)
    check = _action(
        actions, "check", "list risky settings with their value, the reason and the fix", "guard_check.check",
        "--bootstrap kafka-1:9092 --outage-max 36h",
        exit_codes={FINDINGS: "a setting is risky"},
    )  # fmt: skip
    add_topic_argument(check, "only this compacted topic")
    check.add_argument(
        "--outage-max", type=deadline_ms, metavar="DURATION",
        help="longest broker outage you plan for (default: the longest in the journal)",
    )  # fmt: skip
    _add_journal(check)
    for action in actions.choices.values():
        _inherit(action, parser)


def _inherit(action: argparse.ArgumentParser, verb: argparse.ArgumentParser) -> None:
    """Options before the action count too: the action's parser must not reset them to their defaults."""
    shared = {option.dest for option in verb._actions if option.option_strings and option.dest != "help"}
    for option in action._actions:
        if option.dest in shared:
            if option.default and option.nargs != 0 and "(default" not in (option.help or ""):
                option.help = f"{option.help} (default {shown_default(option)})"
            option.default = argparse.SUPPRESS


def _add_readmit(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    readmit = _action(
        actions, "readmit", "check replicas that may be wrong and show how to re-replicate them; with --apply, do it",
        "guard_readmit.readmit", "--bootstrap kafka-1:9092", "--bootstrap kafka-1:9092 --topic orders --broker 3 --apply",
        exit_codes={FINDINGS: "a replica still needs readmission"},
    )  # fmt: skip
    add_topic_argument(readmit, "replicas of this topic (default: replicas that the journal lists as held too late)")
    readmit.add_argument("--partition", type=partition_number, metavar="N", help="only this partition (default: all)")
    readmit.add_argument(
        "--broker", type=broker_number, metavar="N", help="only replicas on this broker (default: all brokers)"
    )
    readmit.add_argument("--apply", action="store_true", help="apply the changes (default: only show them)")
    _add_pace(readmit)
    readmit.add_argument(
        "--bytes-per-second", type=positive, default=BYTES_PER_SECOND, metavar="N",
        help="read limit for checking replicas, over all brokers",
    )  # fmt: skip
    _add_journal(readmit)


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, about: str, body: str, *examples: str,
    exit_codes: Mapping[int, str] | None = None,
) -> argparse.ArgumentParser:  # fmt: skip
    made = actions.add_parser(name, help=about, description=sentence(about))
    add_cluster_arguments(made, what="the guarded cluster")
    add_output_arguments(made)
    explain(made, [f"headstone guard {name} {example}" for example in examples], exit_codes or {})
    made.set_defaults(run=run, body=body)
    return made
