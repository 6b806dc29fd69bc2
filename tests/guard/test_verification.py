"""Readings of replicas: whose turn it is, and what one says of each replica: right, wrong, or not to be judged."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from headstone.api.auditing import AuditSettings, audit_cluster
from headstone.brokers.processes import wait_until
from headstone.cluster.replicas import CopiedReplicas
from headstone.coordination.guard_values import AlarmKind, Verdict, Verify
from headstone.errors import CorruptLog, HeadstoneError, Unfinished
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import KeptAlarm, ReplicaReading
from headstone.guard.loop.alarms import advice
from headstone.guard.verification.background import Readings, reason_of
from headstone.guard.verification.reasons import DIFFERENT_LOGS, WITHHELD
from headstone.guard.verification.verdicts import JudgedReplica, read_replicas, verdicts_of
from headstone.log.checkpoints import HIGH_WATERMARK, write_offsets
from headstone.log.directory import find_partitions
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.audit_outcome import judgement_of
from headstone.pipeline.auditing import PartitionAudit, audit, replicas_of
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.runner import SilentRunner
from tests.cluster.test_copies_under_load import ScriptedCluster, calm, log, running
from tests.oracle.notation import History

PARTITION = TopicPartition("t", 0)
RIGHT = "N[k] N[b] T[k] N[c] | N[z]"
FORGOT = "N[k] N[b] +1 N[c] | N[z]"
END = 5


def judged(
    root: Path,
    replicas: dict[int, tuple[str, int]],
    *,
    failures: dict[int, HeadstoneError] | None = None,
    stable: int = END,
    leader: int | None = None,
) -> dict[int, JudgedReplica]:
    """replicas: the log and the high watermark of each broker, the leader's first unless another one is named."""
    for broker, (terms, high_watermark) in replicas.items():
        history = History()
        history.append(terms)
        history.write_partition(root / str(broker), str(PARTITION))
        write_offsets(root / str(broker) / HIGH_WATERMARK, {PARTITION: high_watermark})
    name = str(PARTITION)
    copied = CopiedReplicas(
        directories={broker: root / str(broker) for broker in replicas},
        stable={(name, broker): stable for broker in replicas}, leaders={name: leader or next(iter(replicas))},
        failures={(name, broker): error for broker, error in (failures or {}).items()},
    )  # fmt: skip
    groups = replicas_of([(str(broker), find_partitions([str(root / str(broker))])) for broker in replicas])
    return verdicts_of(copied, judgement_of(audit(groups, InProcess())[0]))


def verdicts(judgements: dict[int, JudgedReplica]) -> dict[int, Verdict]:
    return {broker: one.verdict for broker, one in judgements.items()}


def test_the_one_that_missed_a_deletion_is_wrong_and_the_others_are_right(tmp_path: Path) -> None:
    found = judged(tmp_path, {1: (RIGHT, END), 2: (RIGHT, END), 3: (FORGOT, END)})
    assert verdicts(found) == {1: Verdict.RIGHT, 2: Verdict.RIGHT, 3: Verdict.WRONG}
    assert found[3].why.startswith("deleted-reappears of key k at offset 0 on broker 3: ")
    assert found[1] == JudgedReplica(verdict=Verdict.RIGHT)


def test_who_has_not_heard_of_all_that_is_committed_is_not_judged(tmp_path: Path) -> None:
    found = judged(tmp_path, {1: (RIGHT, END), 3: (RIGHT, 4)})
    assert found == {
        1: JudgedReplica(verdict=Verdict.RIGHT),
        3: JudgedReplica(
            verdict=Verdict.UNJUDGED,
            why="it has heard of what is committed up to 4 only, of 5: it was not compared beyond",
            behind=True,
        ),
    }


def test_a_healthy_replica_that_lags_is_read_again_though_nothing_could_be_compared_yet(tmp_path: Path) -> None:
    """All keys were written again, and cleaned, where it has not got to."""
    found = judged(tmp_path / "cleaned", {1: ("+4 N[a] N[b]", 6), 3: ("N[a] N[b]", 2)}, stable=6)
    assert {broker: (one.verdict, one.behind) for broker, one in found.items()} == dict.fromkeys(
        (1, 3), (Verdict.UNJUDGED, True)
    )
    # A follower that has just begun has heard of nothing yet.
    unheard = judged(tmp_path / "unheard", {1: (RIGHT, END), 3: (RIGHT, 0)})
    assert {broker: one.behind for broker, one in unheard.items()} == dict.fromkeys((1, 3), True)


def test_keys_that_are_written_all_the_time_make_nobody_suspect(tmp_path: Path) -> None:
    hot = "N[a] N[b] | N[a] N[b]"
    found = judged(tmp_path, {1: (hot, 4), 3: (f"{hot} N[a] N[b]", 4)}, stable=4)
    assert verdicts(found) == {1: Verdict.RIGHT, 3: Verdict.RIGHT}


def test_a_replica_of_which_nothing_could_be_compared_is_not_right(tmp_path: Path) -> None:
    """With a leader that was read, and as far as that one: as of another log."""
    found = judged(tmp_path, {1: ("N[a] N[b] +4", 2), 3: ("+2 N[a] N[b]", 4)}, stable=4)
    assert verdicts(found) == {1: Verdict.UNJUDGED, 3: Verdict.UNJUDGED}
    assert not found[3].behind


def test_a_replica_that_cannot_be_read_says_nothing_of_the_others(tmp_path: Path) -> None:
    torn = CorruptLog(file="0.log", position=7, offset=1, problem="no batch")
    found = judged(
        tmp_path, {1: (RIGHT, END), 2: (RIGHT, END)}, failures={3: torn, 4: Unfinished("its address is unknown")}
    )
    assert found == {
        1: JudgedReplica(verdict=Verdict.RIGHT), 2: JudgedReplica(verdict=Verdict.RIGHT),
        3: JudgedReplica(
            verdict=Verdict.UNJUDGED,
            why="its log is damaged: the replica on broker 3 was not read: 0.log, position 7, offset 1: no batch",
        ),
        4: JudgedReplica(
            verdict=Verdict.UNJUDGED, why="the replica on broker 4 was not read: its address is unknown", read=False
        ),
    }  # fmt: skip


def test_followers_that_agree_are_not_right_while_their_leader_cannot_be_read(tmp_path: Path) -> None:
    """Both may have missed the same deletion, or neither has heard of it yet."""
    gone = Unfinished("it said nothing for 10 s")
    found = judged(tmp_path, {2: (FORGOT, END), 3: (FORGOT, END)}, failures={1: gone}, leader=1)
    unheard = JudgedReplica(verdict=Verdict.UNJUDGED, why="its leader, broker 1, was not read", behind=True)
    assert {broker: found[broker] for broker in (2, 3)} == {2: unheard, 3: unheard}


def test_one_replica_alone_is_not_judged(tmp_path: Path) -> None:
    assert verdicts(judged(tmp_path, {1: (RIGHT, END)})) == {1: Verdict.UNJUDGED}


def test_two_with_other_records_at_one_offset_are_told_apart_from_one_that_is_alone(tmp_path: Path) -> None:
    """All are there and one of them is wrong: nobody needs to be brought back."""
    found = judged(tmp_path, {2: (RIGHT, END), 3: (RIGHT.replace("N[c]", "N[k=1]"), END)})
    assert {one.verdict for one in found.values()} == {Verdict.UNJUDGED}
    assert all(one.why.startswith("it, or another replica, is wrong: ") for one in found.values())
    assert "unexplained difference of key " in found[2].why
    alarms = {
        name: KeptAlarm(kind=AlarmKind.UNJUDGED, topic="t", partition=0, broker=3, detail=detail)
        for name, detail in (("differs", found[3].why), ("alone", judged(tmp_path / "alone", {3: (RIGHT, END)})[3].why))
    }
    assert [("readmit --broker N" in advice(alarm), "bring the other" in advice(alarm)) for alarm in alarms.values()] == [
        (True, False), (False, True),
    ]  # fmt: skip


def test_logs_that_differ_nearly_everywhere_are_not_judged(tmp_path: Path) -> None:
    """They are of different partitions, whatever they are called: nobody is to copy one over the other."""
    topic = f"N[k] {' '.join(f'N[a{i}]' for i in range(28))} T[k] | N[z]"
    other = f"N[k] {' '.join(f'N[b{i}]' for i in range(28))} +1 | N[z]"
    found = judged(tmp_path, {1: (topic, 31), 2: (topic, 31), 3: (other, 31)}, stable=31)
    why = "their contents differ nearly everywhere: at 28 of 30 offsets that both hold, 1 and 3 have different records"
    assert found == dict.fromkeys((1, 2, 3), JudgedReplica(verdict=Verdict.UNJUDGED, why=f"{DIFFERENT_LOGS}: {why}"))


def test_a_broker_that_serves_less_than_its_records_say_is_not_judged(tmp_path: Path) -> None:
    found = judged(tmp_path, {1: (RIGHT, END), 3: (RIGHT, END)}, stable=2)
    assert verdicts(found) == {1: Verdict.UNJUDGED, 3: Verdict.UNJUDGED}
    assert found[3].why == f"{WITHHELD}: broker 3 serves read_committed consumers up to 2 only; its records say 5"


def test_if_the_leader_was_not_read_nobody_is_judged(tmp_path: Path) -> None:
    gone = Unfinished("it said nothing for 10 s")
    copied = CopiedReplicas(directories={}, failures={("t-0", 1): gone, ("t-0", 3): gone})
    judged_nothing = verdicts_of(copied, judgement_of(PartitionAudit(partition="t-0")))
    assert verdicts(judged_nothing) == {1: Verdict.UNJUDGED, 3: Verdict.UNJUDGED}


def test_live_replicas_are_judged_as_the_audit_of_the_cluster_judges_them(tmp_path: Path) -> None:
    ours = [*((offset, b"a%d" % offset, b"v") for offset in range(29)), (29, b"k", None), (30, b"z", b"v")]
    other = [(0, b"k", b"v"), *((offset, b"b%d" % offset, b"v") for offset in range(1, 29)), (30, b"z", b"v")]
    logs = {1: log((0, b"k", b"v"), *ours[1:]), 2: log(*other)}
    brokers = {number: calm(batches, 31) for number, batches in logs.items()}
    with running(ScriptedCluster(brokers)) as connection:
        found = read_replicas(connection, PARTITION, last=2, work=tmp_path)
        settings = AuditSettings(topics=(PARTITION.topic,))
        outcome = audit_cluster(connection, settings, SilentRunner(), command="")
    (partition,) = outcome.partitions
    assert partition.different is not None
    assert (outcome.verdict, partition.findings) == ("different-logs", ())
    why = f"{DIFFERENT_LOGS}: {partition.different}"
    assert found == dict.fromkeys((1, 2), JudgedReplica(verdict=Verdict.UNJUDGED, why=why))


A, B, C = (Verify(topic=topic, partition=0, broker=3) for topic in "abc")
TOPICS = {"a", "b", "c"}


class Wire:
    """Reads one replica at a time, when it is let."""

    def __init__(self, journal: Journal) -> None:
        self.begun: list[str] = []
        self.steps = threading.Semaphore(0)
        self.readings = Readings(self.read, journal, clock=lambda: 1, beside=True)

    def read(self, wanted: Verify) -> dict[int, JudgedReplica]:
        self.begun.append(wanted.topic)
        assert self.steps.acquire(timeout=120)
        if wanted.topic == "a":
            raise Unfinished("it does not let itself be read")
        return {wanted.broker: JudgedReplica(verdict=Verdict.RIGHT)}

    def close(self) -> None:
        self.readings.end()
        self.steps.release(9)
        thread = self.readings._thread
        assert thread is not None
        thread.join(120)

    def begins(self, *topics: str) -> None:
        wait_until(lambda: self.begun == list(topics), f"{topics}, not {self.begun}", seconds_max=120)


@pytest.fixture
def wire(journal: Journal) -> Iterator[Wire]:
    wire = Wire(journal)
    yield wire
    wire.close()


def test_one_that_cannot_be_read_keeps_nobody_waiting(wire: Wire) -> None:
    wire.readings.want([A, B, C], TOPICS)
    wire.begins("a")
    wire.readings.want([A, B, C], TOPICS)
    wire.steps.release()
    wire.begins("a", "b")
    wire.readings.want([A, B, C], TOPICS)
    wire.steps.release()
    wire.begins("a", "b", "c")
    wire.steps.release(3)
    wire.begins("a", "b", "c", "a")


def test_what_a_look_does_not_want_any_more_is_not_begun(wire: Wire) -> None:
    wire.readings.want([B, C], TOPICS)
    wire.begins("b")
    wire.readings.want([A], TOPICS)
    wire.steps.release()
    wire.begins("b", "a")


def test_a_look_at_one_topic_takes_nothing_from_the_others(wire: Wire) -> None:
    wire.readings.want([B, C], TOPICS)
    wire.begins("b")
    wire.readings.want([], {"a"})
    wire.steps.release()
    wire.begins("b", "c")


@pytest.mark.parametrize("error", [ValueError("not a batch"), RecursionError("too deep"), OSError(28, "No space left")])
def test_a_reading_that_fails_in_whatever_way_is_noted_and_the_next_one_is_read(
    journal: Journal, error: Exception
) -> None:
    def read(wanted: Verify) -> dict[int, JudgedReplica]:
        if wanted.topic == "a":
            raise error
        return {wanted.broker: JudgedReplica(verdict=Verdict.RIGHT)}

    readings = Readings(read, journal, clock=lambda: 1, beside=True)
    readings.want([A, B], TOPICS)
    wait_until(lambda: bool(journal.readings("b")), "b is read", seconds_max=120)
    (failed,) = journal.readings("a")
    assert (failed.verdict, failed.detail) == (None, reason_of(error))
    assert reason_of(error) in ("ValueError: not a batch", "RecursionError: too deep", "No space left")


def test_readings_go_on_after_the_journal_was_locked(journal: Journal, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def read(wanted: Verify) -> dict[int, JudgedReplica]:
        begun.append(wanted.topic)
        return {wanted.broker: JudgedReplica(verdict=Verdict.RIGHT)}

    note = journal.note_reading

    def locked(topic: str, reading: ReplicaReading) -> None:
        if topic == "a":
            raise Unfinished("the journal cannot be written: database is locked")
        note(topic, reading)

    readings = Readings(read, journal, clock=lambda: 1, beside=True)
    with monkeypatch.context() as patched:
        patched.setattr(journal, "note_reading", locked)
        readings.want([A, B], TOPICS)
        wait_until(lambda: bool(journal.readings("b")), "b is read", seconds_max=120)
        assert readings._thread is not None
        readings._thread.join(120)
    readings.want([A], TOPICS)
    readings._thread.join(120)
    assert (begun, [reading.verdict for reading in journal.readings("a")]) == (["a", "b", "a"], [Verdict.RIGHT])


def test_a_reading_is_as_old_as_its_beginning_and_not_as_its_end(journal: Journal) -> None:
    """It takes minutes: what happened meanwhile may have come behind what was read already."""
    times_ms = iter([1000, 2000, 3000, 4000])

    def read(wanted: Verify) -> dict[int, JudgedReplica]:
        next(times_ms)
        if wanted == B:
            raise Unfinished("it does not let itself be read")
        return {broker: JudgedReplica(verdict=Verdict.RIGHT) for broker in (2, 3)}

    readings = Readings(read, journal, clock=lambda: next(times_ms), beside=False)
    readings.want([A], TOPICS)
    readings.want([B], TOPICS)
    found = {topic: [reading.read_ms for reading in journal.readings(topic)] for topic in "ab"}
    assert found == {"a": [1000, 1000], "b": [3000]}
