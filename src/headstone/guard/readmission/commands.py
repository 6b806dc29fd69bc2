"""A readmission as commands for Kafka's own tools: what the guard would do from here on, and what to wait for in between.

Words only, for a person who runs them one after the other. A line that begins with # says what to wait for; the next line is
the check. `divergence/kafka_tools.py` quotes names; the present settings are read elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from headstone.coordination.guard_values import HOLD, Configs
from headstone.coordination.readmission import PartitionNow, Readmission
from headstone.divergence.kafka_tools import (
    Bootstrap,
    address,
    alter_broker,
    alter_topic,
    config_remarks,
    describe_broker,
    describe_copies,
    elect_preferred,
    quoted,
    reassign,
)
from headstone.guard.ledger import commands
from headstone.guard.ledger.temporary_changes import RATE, THROTTLED, with_replica


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadmissionOverrides:
    """Overrides that a readmission changes for a while. `rate` belongs to the broker that copies, the others to the topic."""

    hold: Configs
    listed: str | None
    rate: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The settings as they are, and as they were before any readmission: those are restored."""

    present: ReadmissionOverrides
    before: ReadmissionOverrides
    rate_known: bool = True
    """False if the broker is away, so that its rate is unknown."""


def readmission_commands(
    readmission: Readmission, now: PartitionNow, current: Found, *, away: bool, bytes_per_second: int, bootstrap: Bootstrap
) -> tuple[str, ...]:  # fmt: skip
    """In order. If the readmission has begun, the steps already done are left out."""
    partition, broker, order = readmission.topic_partition, readmission.broker, readmission.order
    remaining = [other for other in order if other != broker]
    again = (*remaining, broker)
    added = readmission.expelled and broker in now.replicas
    verified = added and readmission.verified
    settings = current.present
    steps = [*config_remarks(bootstrap)]
    if not readmission.expelled and broker in now.replicas:
        steps += _reassigned(readmission, remaining, "without.json", bootstrap, runs=broker in now.removing)
    if not added:
        steps += _gone(readmission, away=away, bootstrap=bootstrap)
    if not verified:
        settings = replace(settings, hold=HOLD)
        steps.append(commands.hold(partition.topic, bootstrap=bootstrap))
    if not added:
        settings = _throttled(readmission, settings, bytes_per_second)
        steps.append("# wait a minute: every broker must have the hold before the copy begins")
        steps += [] if current.rate_known else _unless_limited(broker, bootstrap)
        steps += _limits(readmission, current.present, settings, bootstrap)
    if not verified:
        steps += _reassigned(readmission, again, "again.json", bootstrap, runs=added)
        steps += _audited(readmission, bootstrap)
    if order != (now.replicas if verified else again):
        steps += _reassigned(readmission, order, "order.json", bootstrap)
    steps += [elect_preferred(partition, bootstrap=bootstrap)] if order[0] == broker else []
    return (
        *steps,
        *_limits(readmission, settings, current.before, bootstrap),
        *_released(readmission, settings, current, bootstrap),
    )


def _reassigned(
    readmission: Readmission, replicas: Sequence[int], file: str, bootstrap: Bootstrap, *, runs: bool = False
) -> list[str]:
    """`runs`: the reassignment was begun already, and the tool would refuse to begin it again."""
    write, execute, verify = reassign({readmission.topic_partition: replicas}, file, bootstrap=bootstrap)
    begin = [write] if runs else [write, execute]
    return [*begin, "# run this until it says that the reassignment is complete, and only then go on:", verify]


def _audited(readmission: Readmission, bootstrap: Bootstrap) -> list[str]:
    place = address(bootstrap)
    login = "" if place.config is None else ", which takes the login of this command (--kafka-conf, --cluster)"
    return [
        f"# go on only if the audit{login} finds nothing wrong on broker {readmission.broker}:",
        f"headstone audit --bootstrap {quoted(place.servers)} --topic {quoted(readmission.topic)}",
    ]


def _gone(readmission: Readmission, *, away: bool, bootstrap: Bootstrap) -> list[str]:
    """If it were added earlier, the broker would continue with the old copy."""
    partition, broker = readmission.topic_partition, readmission.broker
    name = quoted(str(partition))
    first = (
        f"start broker {broker}, which renames its old folder of {name} and goes on without it, then " if away else ""
    )
    wait = f"# {first}run this until broker {broker} answers and shows no copy of {name} any more, and only then go on:"
    return [wait, describe_copies(broker, partition.topic, bootstrap=bootstrap)]


def _throttled(readmission: Readmission, settings: ReadmissionOverrides, bytes_per_second: int) -> ReadmissionOverrides:
    """Leaves an existing throttle as it is."""
    listed = with_replica(settings.listed, readmission.partition, readmission.broker)
    return replace(settings, listed=listed, rate=str(bytes_per_second) if settings.rate is None else settings.rate)


def _unless_limited(broker: int, bootstrap: Bootstrap) -> list[str]:
    remark = f"# if this shows a {RATE} of its own, leave out the two changes of that below:"
    return [remark, describe_broker(broker, bootstrap=bootstrap)]


def _limits(
    readmission: Readmission, old: ReadmissionOverrides, new: ReadmissionOverrides, bootstrap: Bootstrap
) -> list[str]:
    rate = alter_broker(readmission.broker, {RATE: new.rate}, bootstrap=bootstrap)
    listed = alter_topic(readmission.topic, {THROTTLED: new.listed}, bootstrap=bootstrap)
    return [*([rate] if new.rate != old.rate else []), *([listed] if new.listed != old.listed else [])]


def _released(
    readmission: Readmission, settings: ReadmissionOverrides, current: Found, bootstrap: Bootstrap
) -> list[str]:
    if settings.hold != current.before.hold:
        return [commands.release(readmission.topic, current.before.hold, bootstrap=bootstrap)]
    return ["# the topic was held before, or the guard counts on it: the hold stays"] if settings.hold == HOLD else []
