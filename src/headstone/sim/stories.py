"""The four corruptions as stories: three brokers, one of them away, told step by step with what every replica holds.

Each story is played twice over the same steps, by Kafka's rule and by the coordinated one. Time is a number, so an outage of a
day takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field

from headstone.retention.policy import COORDINATED, KAFKA, Policy
from headstone.sim.batches import EMPTIED, Batch
from headstone.sim.broker import Parts, SimBroker
from headstone.sim.checkers import CheckerFinding, check_log
from headstone.sim.cluster import RecordPairs, SimCluster, SimProducer
from headstone.sim.readers import read, table_of
from headstone.sim.variants import (
    ABORTED_TO_COMMITTED,
    COMMITTED_TO_ABORTED,
    STUCK_READ_COMMITTED,
    TOMBSTONE_DIVERGENCE,
)

HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
BROKERS = 3
AWAY = 2
"""The broker that is switched off."""
RULE_NAMES = {KAFKA: "Kafka's rule: time alone decides", COORDINATED: "coordinated: time and watermarks decide"}

VALUE = "value"
TOMBSTONE = "tombstone"
TRANSACTIONAL = "transactional"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaView:
    """One replica at one moment. `table` is what a read_committed consumer gets from it, key to value.

    `log`, `offsets`, `ends` (exclusive) and `kinds` have one entry per batch; batches of the filler key are left out.
    """

    broker: int
    alive: bool
    log_start: int
    log_end: int
    high_watermark: int
    lso: int
    mcco: int
    mxfo: int
    mtro: int
    mxro: int
    log: tuple[str, ...]
    offsets: tuple[int, ...]
    ends: tuple[int, ...]
    kinds: tuple[str, ...]
    table: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoryScene:
    hours: int
    title: str
    lesson: str
    replicas: tuple[ReplicaView, ...]


@dataclass(slots=True, kw_only=True)
class Telling:
    """One story under one rule set; `findings` are those at the end."""

    variant: str
    about: str
    rules: str
    scenes: list[StoryScene] = field(default_factory=list)
    findings: list[CheckerFinding] = field(default_factory=list)
    expected: dict[str, str] = field(default_factory=dict)

    @property
    def corrupt(self) -> bool:
        return bool(self.findings)

    def as_json(self) -> dict[str, object]:
        scenes = [asdict(scene) for scene in self.scenes]
        return {
            "variant": self.variant, "about": self.about, "rules": self.rules, "corrupt": self.corrupt,
            "findings": [asdict(finding) for finding in self.findings], "expected": self.expected,
            "replicas": scenes[-1]["replicas"], "scenes": scenes,
        }  # fmt: skip


class StoryStage:
    """A cluster and the moves that stories are made of; every move leaves followers caught up."""

    def __init__(self, telling: Telling) -> None:
        self.telling = telling
        policy = Policy(now_ms=0, delete_retention_ms=DAY_MS, producer_id_expiration_ms=DAY_MS)
        self.cluster = SimCluster(
            brokers=BROKERS, replicas=BROKERS, rules=telling.rules, policy=policy, parts=Parts(),
            skews_ms=[0] * BROKERS,
        )  # fmt: skip
        self.start_ms = self.cluster.now_ms
        self.producer = SimProducer(producer_id=7, marker_bumps_epoch=True)
        self.cluster.producers.append(self.producer)
        self._fillers = 0

    def scene(self, title: str, lesson: str, *, coordinated: str | None = None) -> None:
        """`coordinated` is the lesson if the coordinated rule makes a difference."""
        if coordinated is not None and self.telling.rules == COORDINATED:
            lesson = coordinated
        hours = (self.cluster.now_ms - self.start_ms) // HOUR_MS
        views = tuple(view(broker) for broker in self.cluster.brokers)
        self.telling.scenes.append(StoryScene(hours=hours, title=title, lesson=lesson, replicas=views))

    def leader(self) -> SimBroker:
        leader = self.cluster.leader()
        assert leader is not None
        return leader

    def replicate(self) -> None:
        for _ in range(3):
            for broker in self.cluster.brokers:
                self.cluster.fetch(broker)
            self.cluster.expand_isr()
            for broker in self.cluster.brokers:
                self.cluster.learn(broker)

    def write(self, records: RecordPairs, *, transactional: bool = False) -> None:
        assert self.cluster.produce(self.leader(), records, self.producer if transactional else None)
        self.replicate()

    def end(self, *, commit: bool) -> None:
        assert self.cluster.decide(self.producer, commit=commit)
        self.cluster.write_marker(self.producer)
        self.replicate()
        assert self.cluster.write_marker(self.producer)

    def switch_off(self) -> None:
        self.cluster.crash(AWAY, clean_stop=True)
        self.replicate()

    def days(self, passes: int, hours: int) -> None:
        """Time passes under other traffic: in each pass a segment fills, the watermarks are polled and cleaners run."""
        for _ in range(passes):
            self._fillers += 1
            self.write([(b"z", b"%d" % self._fillers)])
            for broker in self.cluster.brokers:
                if broker.alive:
                    broker.log.roll()
                    self.cluster.clean(broker)
            self.cluster.tick(self.leader())
            self.cluster.gossip()
            self.cluster.now_ms += hours * HOUR_MS

    def switch_on_and_lead(self) -> None:
        self.cluster.restart(AWAY, kept_to=self.cluster.brokers[AWAY].log.log_end)
        self.cluster.learn(self.cluster.brokers[AWAY])
        self.replicate()
        assert self.cluster.elect(AWAY)
        self.replicate()

    def finish(self) -> None:
        for broker in self.cluster.brokers:
            self.telling.findings += check_log(f"broker {broker.number}", broker.log, self.cluster.truth)
        table = self.cluster.truth.table()
        self.telling.expected = {key.decode(): value.decode() for key, value in table.items() if key != b"z"}
        if self.telling.rules == COORDINATED:
            self.days(passes=6, hours=25)
            self.scene(
                "everyone has cleaned", "every replica reported: the watermarks rise, and what was held back may go"
            )


def view(broker: SimBroker) -> ReplicaView:
    log = broker.log
    served, _ = read(log, log.log_start, committed=True)
    proved = broker.replica.watermarks() if broker.alive else log.watermarks()
    table = {r.key.decode(): r.value.decode() for r in table_of(served).values() if r.value is not None}
    batches = [batch for batch in log.batches() if not _filler(batch)]
    return ReplicaView(
        broker=broker.number, alive=broker.alive, log_start=log.log_start, log_end=log.log_end,
        high_watermark=log.high_watermark, lso=log.last_stable_offset(), mcco=proved.mcco, mxfo=proved.mxfo,
        mtro=broker.group().mtro, mxro=broker.group().mxro, log=tuple(show_batch(batch) for batch in batches),
        offsets=tuple(batch.base for batch in batches), ends=tuple(batch.last + 1 for batch in batches),
        kinds=tuple(kind_of(batch) for batch in batches),
        table={key: value for key, value in sorted(table.items()) if key != "z"},
    )  # fmt: skip


def _filler(batch: Batch) -> bool:
    return bool(batch.records) and all(record.key == b"z" for record in batch.records)


def kind_of(batch: Batch) -> str:
    """VALUE, TOMBSTONE (nothing but tombstones), TRANSACTIONAL data of either kind, COMMIT, ABORT, or EMPTIED: no record is
    left."""
    if not batch.is_data:
        return batch.kind
    if not batch.records:
        return EMPTIED
    if batch.transactional:
        return TRANSACTIONAL
    return TOMBSTONE if all(record.value is None for record in batch.records) else VALUE


def show_table(table: dict[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in table.items()) or "nothing"


def show_batch(batch: Batch) -> str:
    """For example `3:k=v`, `4:k=null txn`, `5:COMMIT`, `5:(emptied marker)`."""
    if batch.kind == "emptied":
        return f"{batch.base}:(emptied marker)"
    if not batch.is_data:
        return f"{batch.base}:{batch.kind}"
    shown = [f"{r.offset}:{r.key.decode()}={'null' if r.value is None else r.value.decode()}" for r in batch.records]
    text = ", ".join(shown) if shown else f"{batch.base}:(no records)"
    return f"{text} txn" if batch.transactional else text


def tombstone_divergence(stage: StoryStage) -> None:
    stage.write([(b"k", b"v")])
    stage.scene("k=v is written", "all three replicas hold it")
    stage.switch_off()
    stage.write([(b"k", None)])
    stage.scene("broker 2 is switched off, then k is deleted", "the tombstone reaches brokers 0 and 1 only")
    stage.days(passes=1, hours=25)
    stage.scene(
        "the cleaners run; a day passes", "the value is superseded and gone; the tombstone has had its 24 hours"
    )
    stage.days(passes=1, hours=1)
    stage.scene(
        "the cleaners run again",
        "delete.retention.ms is over: the tombstone goes, on brokers 0 and 1 alike",
        coordinated="broker 2 has not reported: MTRO is 0, so the tombstone stays although its time is over",
    )
    stage.switch_on_and_lead()
    stage.scene(
        "broker 2 comes back and leads",
        "it fetches from its own log end on: the tombstone it missed is nowhere",
        coordinated="it fetches from its own log end on, and the tombstone is the first thing it gets",
    )


def aborted_to_committed(stage: StoryStage) -> None:
    stage.write([(b"poison", b"x")], transactional=True)
    stage.scene("a transaction writes poison=x", "undecided: nobody may read it yet")
    stage.switch_off()
    stage.end(commit=False)
    stage.scene(
        "broker 2 is switched off, then the transaction aborts", "the ABORT marker reaches brokers 0 and 1 only"
    )
    stage.days(passes=4, hours=25)
    stage.scene(
        "days pass, the cleaners run",
        "first the aborted data goes, then, a day later, its ABORT marker",
        coordinated="the aborted data goes; its marker stays, because broker 2 may hold what it decides: MXRO is 0",
    )
    stage.write([(b"good", b"data")], transactional=True)
    stage.end(commit=True)
    stage.scene("the same producer commits good=data", "its next marker is a COMMIT")
    stage.switch_on_and_lead()
    stage.scene(
        "broker 2 comes back and leads",
        "the first marker it sees for its open transaction is that COMMIT",
        coordinated="the first marker it sees for its open transaction is its own ABORT",
    )


def committed_to_aborted(stage: StoryStage) -> None:
    stage.write([(b"k", b"v")])
    stage.write([(b"k", None)], transactional=True)
    stage.scene("k=v is written, then a transaction deletes k", "undecided as yet: k=v still counts")
    stage.switch_off()
    stage.end(commit=True)
    stage.scene("broker 2 is switched off, then the transaction commits", "the COMMIT reaches brokers 0 and 1 only")
    stage.days(passes=6, hours=25)
    stage.scene(
        "days pass, the cleaners run",
        "the value goes, then the tombstone, then the COMMIT marker",
        coordinated="the value goes; tombstone and marker are due but stay: broker 2 has reported neither MCCO nor MXFO",
    )
    stage.write([(b"junk", b"x")], transactional=True)
    stage.end(commit=False)
    stage.scene("the same producer aborts junk=x", "its next marker is an ABORT")
    stage.switch_on_and_lead()
    stage.scene(
        "broker 2 comes back and leads",
        "the first marker it sees for its open transaction is that ABORT",
        coordinated="the first marker it sees for its open transaction is its own COMMIT",
    )


def stuck_read_committed(stage: StoryStage) -> None:
    stage.write([(b"k", b"v1")], transactional=True)
    stage.scene("a transaction writes k=v1", "undecided: the last stable offset waits before it")
    stage.switch_off()
    stage.end(commit=True)
    stage.write([(b"k", b"v2")])
    stage.scene("broker 2 is switched off, then the transaction commits, and k=v2 follows", "brokers 0 and 1 move on")
    stage.days(passes=4, hours=25)
    stage.scene(
        "days pass, the cleaners run",
        "k=v1 is superseded and goes, then its COMMIT marker",
        coordinated="k=v1 is superseded and goes; its marker stays for broker 2",
    )
    stage.switch_on_and_lead()
    stage.scene(
        "broker 2 comes back and leads",
        "its transaction never ends: read_committed consumers wait for ever at offset 0",
        coordinated="the COMMIT is there: the transaction ends, and readers go on",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    variant: str
    about: str
    play: Callable[[StoryStage], None]


STORIES = (
    Story(
        variant=TOMBSTONE_DIVERGENCE, about="deleted data reappears: a replica misses the tombstone",
        play=tombstone_divergence,
    ),
    Story(
        variant=ABORTED_TO_COMMITTED, about="aborted data is served as committed: a replica misses the ABORT marker",
        play=aborted_to_committed,
    ),
    Story(
        variant=COMMITTED_TO_ABORTED, about="committed data is hidden: a replica misses the COMMIT marker",
        play=committed_to_aborted,
    ),
    Story(
        variant=STUCK_READ_COMMITTED, about="read_committed consumers freeze: a replica misses the COMMIT marker",
        play=stuck_read_committed,
    ),
)  # fmt: skip


def tell_story(story: Story, rules: str) -> Telling:
    telling = Telling(variant=story.variant, about=story.about, rules=rules)
    stage = StoryStage(telling)
    story.play(stage)
    stage.finish()
    return telling
