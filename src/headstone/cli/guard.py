"""`headstone guard`: keeps the promise of coordinated compaction on a live cluster, and says what it holds and why.

Without an action it watches. What the actions do is in `guard_watch.py` (the loop, `status`, `release`), `guard_check.py` and
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
    broker_number,
    deadline_ms,
    duration_ms,
    interval_ms,
    partition_count,
    partition_number,
    positive,
)
from headstone.cli.output import Output
from headstone.cli.parsing import FINDINGS, add_output_arguments, explain
from headstone.coordination.danger import Margins

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
    _add_topics(parser, "watch only this compacted topic")
    parser.add_argument("--apply", action="store_true", help="act (default: only say what would be done)")
    parser.add_argument("--once", action="store_true", help="one look, for cron (default: until SIGTERM or Ctrl-C)")
    parser.add_argument(
        "--allow", action="append", default=[], choices=(CLUSTER_DEFAULT, READMISSION),
        help="cluster-default: hold by the brokers' default where a robot undoes a topic's; readmission: take a replica that "
        "may be wrong out of the assignment and add it again, to copy afresh; may be repeated",
    )  # fmt: skip
    _add_pace(parser)
    _add_journal(parser)
    parser.add_argument(
        "--metrics", type=HostPort(), metavar="HOST:PORT", help="serve Prometheus metrics there (default: none)"
    )
    _add_agents(parser)
    _add_margins(parser)
    add_output_arguments(parser)
    explain(parser, EXAMPLES, {FINDINGS: "--once: an alarm stands, a person must do something"})
    parser.set_defaults(run=run, body="guard_watch.watch")
    _add_actions(parser)


def _add_topics(parser: argparse.ArgumentParser, about: str) -> None:
    parser.add_argument("--topic", action="append", default=[], help=f"{about}; may be repeated")


def _add_journal(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--journal", type=Path, metavar="FILE",
        help="what the guard remembers, an SQLite file (default: $XDG_STATE_HOME/headstone/guard/CLUSTER-ID.sqlite)",
    )  # fmt: skip


def _add_pace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--partitions-at-once", type=partition_count, default=1, metavar="N",
        help="so many copy afresh at the same time in readmissions; the others wait (default 1)",
    )  # fmt: skip
    parser.add_argument(
        "--throttle", type=positive, default=50 << 20, metavar="N",
        help="bytes a second that a broker copies afresh in a readmission (default 52428800: 50 MiB)",
    )  # fmt: skip


def _add_agents(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("agents beside brokers: headstone agent")
    group.add_argument(
        "--agents", type=HostPort(), metavar="HOST:PORT", help="take their reports there (default: none are taken)"
    )
    group.add_argument(
        "--agents-token", metavar="REF",
        help="that signs their reports, as env:NAME or file:PATH (default: none, by certificate)",
    )  # fmt: skip
    group.add_argument(
        "--agents-tls-cert", metavar="FILE", help="speak TLS with this certificate, PEM (default: plain)"
    )
    group.add_argument("--agents-tls-key", metavar="FILE", help="its key, PEM (default: in --agents-tls-cert)")
    group.add_argument(
        "--agents-tls-ca", metavar="FILE",
        help="agents must show a certificate of this authority, PEM; one that names broker-N speaks for broker N only "
        "(default: none is asked for)",
    )  # fmt: skip


def _add_margins(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("margins of safety, docs/guard.md")
    group.add_argument(
        "--poll-ms", type=interval_ms, default=MARGINS.poll_ms, metavar="N", help="from one look to the next"
    )
    group.add_argument(
        "--metadata-age-ms", type=duration_ms, default=MARGINS.metadata_age_ms, metavar="N",
        help="how old the metadata may be that a broker answers from",
    )  # fmt: skip
    group.add_argument(
        "--clock-skew-ms", type=duration_ms, default=MARGINS.skew_ms, metavar="N",
        help="how much more two brokers' clocks may differ than was seen",
    )  # fmt: skip
    group.add_argument(
        "--effect-ms", type=duration_ms, default=MARGINS.effect_ms, metavar="N",
        help="from asking for a hold to the last broker that has it",
    )  # fmt: skip
    group.add_argument(
        "--pass-start-ms", type=duration_ms, default=MARGINS.pass_start_ms, metavar="N",
        help="how late a cleaner may begin a pass that it had chosen before the hold",
    )  # fmt: skip
    group.add_argument(
        "--slack-share", type=Share(), default=MARGINS.slack_share, metavar="X",
        help="hold when this share of the time until the first unsafe removal is used up",
    )  # fmt: skip
    group.add_argument(
        "--robot-ms", type=duration_ms, default=MARGINS.robot_ms, metavar="N",
        help="who puts back what was there within so long after a hold is a robot, not a person: longer than its rounds take",
    )  # fmt: skip


def _add_actions(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=False, metavar="[ACTION]")
    status = _action(
        actions, "status", "who blocks what, countdowns, what is held since when and why, what to do", "guard_watch.status",
        "--bootstrap kafka-1:9092", "--bootstrap kafka-1:9092 --output json",
        exit_codes={FINDINGS: "an alarm stands, a person must do something"},
    )  # fmt: skip
    status.add_argument(
        "--record", type=RecordName.parse, action="append", default=[], metavar="TOPIC-PARTITION@OFFSET",
        help="which replicas still hold this record, by their agents' word: is a tombstone gone everywhere; may be repeated",
    )  # fmt: skip
    _add_journal(status)
    undo = _action(
        actions, "release", "show how holds are undone, exactly as found; with --apply, do it", "guard_watch.release",
        "--bootstrap kafka-1:9092", "--bootstrap kafka-1:9092 --topic orders --apply",
    )  # fmt: skip
    _add_topics(undo, "only the hold of this topic")
    undo.add_argument("--apply", action="store_true", help="do it (default: only show it)")
    _add_journal(undo)
    _add_readmit(actions)
    check = _action(
        actions, "check", "settings that widen the danger, each with the figure, the reason and the fix", "guard_check.check",
        "--bootstrap kafka-1:9092 --outage-max 36h",
        exit_codes={FINDINGS: "a setting widens the danger"},
    )  # fmt: skip
    _add_topics(check, "only this compacted topic")
    check.add_argument(
        "--outage-max", type=deadline_ms, metavar="T",
        help="the longest outage of a broker that you plan for, such as 36h (default: the longest that the journal knows)",
    )  # fmt: skip
    _add_journal(check)
    for action in actions.choices.values():
        _inherit(action, parser)


def _inherit(action: argparse.ArgumentParser, verb: argparse.ArgumentParser) -> None:
    """Options before the action count as well: what it does not say itself is not set back to a default."""
    shared = {option.dest for option in verb._actions if option.option_strings and option.dest != "help"}
    for option in action._actions:
        if option.dest in shared:
            if option.default and option.nargs != 0 and "(default" not in (option.help or ""):
                option.help = f"{option.help} (default {option.default})"
            option.default = argparse.SUPPRESS


def _add_readmit(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    readmit = _action(
        actions, "readmit", "read replicas that may be wrong, show how they copy afresh; with --apply, do it",
        "guard_readmit.readmit", "--bootstrap kafka-1:9092", "--bootstrap kafka-1:9092 --topic orders --broker 3 --apply",
        exit_codes={FINDINGS: "a replica needs readmission, or is not readmitted yet"},
    )  # fmt: skip
    _add_topics(readmit, "replicas of this topic (default: those that the journal calls too late)")
    readmit.add_argument(
        "--partition", type=partition_number, metavar="N", help="only this one of the topic (default: all)"
    )
    readmit.add_argument(
        "--broker", type=broker_number, metavar="N", help="only replicas on this broker (default: on any)"
    )
    readmit.add_argument("--apply", action="store_true", help="do it (default: only show it)")
    _add_pace(readmit)
    readmit.add_argument(
        "--bytes-per-second", type=positive, default=50 << 20, metavar="N",
        help="to read replicas at, over all brokers (default 52428800: 50 MiB)",
    )  # fmt: skip
    _add_journal(readmit)


def _action(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, about: str, body: str, *examples: str,
    exit_codes: Mapping[int, str] | None = None,
) -> argparse.ArgumentParser:  # fmt: skip
    made = actions.add_parser(name, help=about, description=about + ".")
    add_cluster_arguments(made, what="the guarded cluster")
    add_output_arguments(made)
    explain(made, [f"headstone guard {name} {example}" for example in examples], exit_codes or {})
    made.set_defaults(run=run, body=body)
    return made
