"""A topic of one partition, its brokers, and a guard that looks at them: what the guard's golden conversations are played on.

The cluster does at once what the guard asks for, or refuses it. `told` is the story so far, a line each. Clocks, files and
networks there are none. Decides nothing and checks nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from headstone.coordination.absences import is_held, is_held_by_default, is_reached_by_default
from headstone.coordination.danger import Margins
from headstone.coordination.freshness import is_void
from headstone.coordination.guard_values import (
    DEFAULT_HOLD,
    Action,
    AddAgain,
    Alarm,
    Allowed,
    AskBrokers,
    Configs,
    Decision,
    DeletionsRead,
    EndPasses,
    Expel,
    HoldByDefault,
    Memory,
    PartitionSeen,
    Release,
    ReleaseDefault,
    ReplicaSeen,
    SetHold,
    Status,
    TopicSeen,
    Verdict,
    Verify,
)
from headstone.coordination.hold_states import state_of
from tests.coordination.guard_watch import DAY_MS, NOTHING, SECOND_MS
from tests.coordination.hold_steps import decide_in_steps

NO_DEFAULT: Configs = tuple((name, None) for name, _ in DEFAULT_HOLD)
FOLLOW_UP_MS = SECOND_MS
"""A change is followed up so much later."""
RECORDS = 10


@dataclass(slots=True, kw_only=True)
class Replica:
    """What the guard can ask of it; and whether it is right, which only a reading shows."""

    log_end: int
    is_wrong: bool = False
    verdict: Verdict | None = None
    read_ms: int = 0


@dataclass(slots=True, kw_only=True)
class GuardStory:
    now_ms: int = 100 * DAY_MS
    margins: Margins = field(default_factory=Margins)
    allowed: Allowed = field(default_factory=Allowed)
    memory: Memory = field(default_factory=Memory)
    told: list[str] = field(default_factory=list)
    retention_ms: int = DAY_MS
    compacted: bool = True
    overrides: Configs = NOTHING
    default: Configs = NO_DEFAULT
    replicas: dict[int, Replica] = field(default_factory=dict)
    isr: list[int] = field(default_factory=list)
    leader: int | None = None
    leader_epoch: int = 0
    moving: list[int] = field(default_factory=list)
    running: set[int] = field(default_factory=set)
    committed_end: int = 100
    deleted: int | None = None
    """The newest tombstone."""
    refuses: bool = False
    answers_lost: bool = False
    guard_reads: bool = False
    agents: bool = False
    silent: set[int] = field(default_factory=set)
    _asked: tuple[int, ...] = ()
    _accepted_ms: int | None = None
    _default_accepted_ms: int | None = None
    _shown_before: set[object] = field(default_factory=set)

    def create(self, brokers: Sequence[int]) -> None:
        self.replicas = {broker: Replica(log_end=self.committed_end) for broker in brokers}
        self.isr, self.leader, self.running = list(brokers), brokers[0], set(brokers)

    def stop(self, broker: int) -> None:
        self.running.discard(broker)
        if broker not in self.isr:
            return
        self.isr.remove(broker)
        if self.leader == broker:
            self.leader, self.leader_epoch = (self.isr[0] if self.isr else None), self.leader_epoch + 1

    def start(self, broker: int) -> None:
        self.running.add(broker)

    def lead(self, broker: int) -> None:
        self.leader, self.leader_epoch, self.isr = broker, self.leader_epoch + 1, [broker]

    def catch_up(self, broker: int) -> None:
        self.running.add(broker)
        self.replicas[broker].log_end = self.committed_end
        self.isr = [number for number in self.replicas if number in {*self.isr, broker}]
        self.moving = [number for number in self.moving if number != broker]

    def write(self, *, deletes: bool) -> None:
        self.deleted = self.committed_end if deletes else self.deleted
        self.committed_end += RECORDS
        for broker in self.isr:
            self.replicas[broker].log_end = self.committed_end

    def assign(self, brokers: Sequence[int]) -> None:
        """A reassignment begins: who is new copies, who is to go is still there."""
        self.moving = sorted(set(brokers) ^ set(self.replicas))
        for broker in brokers:
            self.running.add(broker)
            self.replicas.setdefault(broker, Replica(log_end=0))

    def finish(self, brokers: Sequence[int]) -> None:
        self.replicas = {broker: self.replicas[broker] for broker in brokers}
        self.isr = [broker for broker in self.isr if broker in brokers]
        self.moving = []
        if self.leader not in brokers:
            self.leader, self.leader_epoch = self.isr[0], self.leader_epoch + 1

    def look(self) -> TopicSeen:
        read = DeletionsRead(start=0, end=self.committed_end, newest=self.deleted) if self.guard_reads else None
        partition = PartitionSeen(
            partition=0, leader=self.leader, replicas=tuple(self._seen(broker) for broker in self.replicas),
            isr=tuple(self.isr), moving=tuple(self.moving), leader_epoch=self.leader_epoch,
            committed_end=None if self.leader is None else self.committed_end, deletions=read,
        )  # fmt: skip
        asked = (
            self.running if is_held(self.overrides) else self._asked
        )  # a look asks all, of topics that are shown held
        held_on = tuple(broker for broker in sorted(asked) if self._has_hold(broker))
        self._asked = ()
        return TopicSeen(
            topic="orders", asked_ms=self.now_ms, compacted=self.compacted, delete_retention_ms=self.retention_ms,
            overrides=self.overrides, partitions=(partition,), alive=tuple(sorted(self.running)), held_on=held_on,
            hold_accepted_ms=self._accepted_ms, default_accepted_ms=self._default_accepted_ms,
            default_overrides=self.default,
        )  # fmt: skip

    def _seen(self, broker: int) -> ReplicaSeen:
        replica = self.replicas[broker]
        log_end = replica.log_end if broker in self.running else None
        return ReplicaSeen(broker=broker, log_end=log_end, verdict=replica.verdict, read_ms=replica.read_ms)

    def _has_hold(self, broker: int) -> bool:
        by_default = is_held_by_default(self.default) and is_reached_by_default(self.overrides)
        return broker in self.running - self.silent and (is_held(self.overrides) or by_default)

    def guard_looks(self, *, decides_later_ms: int = 0, acts_later_ms: int = 0) -> bool:
        """Whether anything is new since the look before; what is, is told."""
        look = self.look()
        self.now_ms += decides_later_ms
        decision, steps = decide_in_steps(self.memory, look, self.now_ms, self.margins, self.allowed)
        self.memory = decision.memory
        self.now_ms += acts_later_ms
        lines = [status_text(status) for status in decision.statuses]
        steps_told = [f"hold: {step.target} ({step.reason})" for step in steps]
        done = [self._do(action, look, decision) for action in decision.actions]
        # That the moment of danger moves on, as it does while nothing is missed, is no news.
        shown = {*done, *((status.state, status.blockers) for status in decision.statuses)}
        is_new = bool(steps) or not shown <= self._shown_before
        self._shown_before = shown
        self.told += [f"{moment(look.asked_ms)}", *(f"    {line}" for line in [*lines, *steps_told, *done])]
        return is_new

    def guard_watches(self, duration_ms: int) -> None:
        """At every poll, and a second after anything new; looks that show nothing new are left out."""
        end_ms = self.now_ms + duration_ms
        while self.now_ms < end_ms:
            said = len(self.told)
            is_new = self.guard_looks()
            if not is_new:
                del self.told[said:]
            self.now_ms = min(end_ms, self.now_ms + (FOLLOW_UP_MS if is_new else self.margins.poll_ms))

    def show_hold(self) -> None:
        self.told.append(f"{state_of(self.memory)}")

    def _do(self, action: Action, look: TopicSeen, decision: Decision) -> str:
        text = action_text(action)
        if is_void(action, decision.memory, look, self.now_ms, self.margins):
            return f"{text}: not done, the look is too old"
        match action:
            case Alarm():
                return text
            case AskBrokers(brokers=brokers):
                self._asked = brokers
                confirmed = [broker for broker in brokers if self._has_hold(broker)]
                return f"{text} yes: {numbers(confirmed)}" if confirmed else f"{text} no answer says so"
            case Verify():
                return f"{text}: {self._read(action)}"
            case _ if self.refuses:
                return f"{text}: refused"
        return f"{text}: {self._change(action)}"

    def _change(self, action: Action) -> str:
        match action:
            case SetHold(configs=configs):
                self.overrides = configs
                self._accepted_ms = None if self.answers_lost else self.now_ms
            case HoldByDefault(configs=configs):
                self.default = configs
                self._default_accepted_ms = None if self.answers_lost else self.now_ms
            case Release(restore=restore):
                self.overrides = tuple((dict(self.overrides) | dict(restore)).items())
            case ReleaseDefault(restore=restore):
                self.default = tuple((dict(self.default) | dict(restore)).items())
            case Expel(broker=broker, remaining=remaining):
                self.finish(remaining)
                assert broker not in self.replicas
            case AddAgain(broker=broker):
                self.assign([*self.replicas, broker])
        return "not answered" if self.answers_lost else "done"

    def _read(self, action: Verify) -> str:
        if self.agents and action.missed is not None:
            self.replicas[action.broker].verdict, self.replicas[action.broker].read_ms = Verdict.RIGHT, self.now_ms
            return "the agents say that it has that"
        readable = [broker for broker in self.isr if broker in self.running]
        for broker in readable:
            replica = self.replicas[broker]
            verdict = Verdict.WRONG if replica.is_wrong else Verdict.RIGHT
            replica.verdict, replica.read_ms = (verdict if len(readable) > 1 else Verdict.UNJUDGED), self.now_ms
        return str(self.replicas[action.broker].verdict)


def moment(time_ms: int) -> str:
    day, rest = divmod(time_ms - 100 * DAY_MS, DAY_MS)
    seconds = rest // SECOND_MS
    return f"day {day + 1}, {seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def numbers(brokers: Sequence[int]) -> str:
    return ", ".join(map(str, brokers))


def status_text(status: Status) -> str:
    if not status.blockers:
        return f"{status.state}"
    assert status.since_ms is not None
    behind = f"{status.state}: broker {numbers(status.blockers)}, away since {moment(status.since_ms)}"
    return behind if status.unsafe_ms is None else f"{behind}, unsafe from {moment(status.unsafe_ms)}"


def action_text(action: Action) -> str:
    match action:
        case SetHold(by_ms=by_ms, reason=reason):
            by = f"by {moment(by_ms)}" if by_ms else "at once"
            return f"-> hold the topic, in effect {by} ({reason})"
        case AskBrokers(brokers=brokers):
            return f"-> ask broker {numbers(brokers)}: do you have the hold?"
        case EndPasses():
            return "-> restart the cleaner threads"
        case Verify(broker=broker, missed=missed):
            part = "all of it" if missed is None else f"what it missed, offsets {missed.start} to {missed.end}"
            return f"-> read broker {broker}, {part}"
        case Release(restore=restore):
            return f"-> release the topic: {configs_text(restore)}"
        case HoldByDefault():
            return "-> hold by the cluster default"
        case ReleaseDefault(restore=restore):
            return f"-> release the cluster default: {configs_text(restore)}"
        case Expel(broker=broker, remaining=remaining):
            return f"-> take broker {broker} out of the assignment, {numbers(remaining)} remain"
        case AddAgain(broker=broker, order=order):
            return f"-> add broker {broker} again, as {numbers(order)}"
        case Alarm(kind=kind, broker=broker):
            return f"ALARM {kind}" + ("" if broker is None else f": broker {broker}")


def configs_text(configs: Configs) -> str:
    if all(value is None for _, value in configs):
        return f"{len(configs)} overrides deleted"
    return ", ".join(f"{name} {'deleted' if value is None else f'back to {value}'}" for name, value in configs)


def with_override(configs: Configs, name: str, value: str | None) -> Configs:
    return tuple((key, value if key == name else old) for key, old in configs)


def allow(story: GuardStory, what: str) -> None:
    readmission, default = "readmission" in what, "cluster default" in what
    story.allowed = replace(
        story.allowed, readmission=readmission or story.allowed.readmission,
        cluster_default=default or story.allowed.cluster_default,
    )  # fmt: skip
