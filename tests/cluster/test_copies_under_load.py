"""Copies of replicas that are written, cleaned and led by others while they are read: none of it is a finding, or a gap."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from headstone.cluster import replicas
from headstone.cluster.connection import Connection
from headstone.cluster.encoding import Writer
from headstone.cluster.live_audit import ask_stable_again, audit_partition, withheld
from headstone.cluster.refusals import NOT_REPLICA, OUT_OF_RANGE
from headstone.cluster.replicas import CopiedReplicas, copy_partition
from headstone.cluster.wire import READ_COMMITTED
from headstone.log.directory import find_partitions
from headstone.log.indexes import read_aborted
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.auditing import PartitionAudit, audit, findings_of, replicas_of
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.runner import SilentRunner
from tests.cluster.fake_brokers import FETCH, LIST_OFFSETS, METADATA, Request, listening, metadata, record
from tests.oracle.batches import to_bytes
from tests.oracle.notation import History

WITH_IDS = 10
PARTITION = TopicPartition("t", 0)


@dataclass
class Moment:
    """What a replica answers to one fetch: its batches by offset, one of them in each answer; and how far it counts.

    Of transactions that were aborted (producer, first and last offset) an answer tells those that its records belong to."""

    batches: dict[int, bytes]
    high_watermark: int
    stable: int | None = None
    log_start: int = 0
    at_once: int = 1
    aborted: tuple[tuple[int, int, int], ...] = ()
    hangs_up: bool = False


@dataclass
class ScriptedReplica:
    """Fetches go from one moment to the next; the last one stays."""

    moments: list[Moment]
    fetched: list[int] = field(default_factory=list)

    def answer(self, offset: int, *, isolation: int, bytes_max: int) -> Writer | None:
        """The last batch may be cut off; the first one is whole, however large."""
        moment = self.moments[min(len(self.fetched), len(self.moments) - 1)]
        self.fetched.append(offset)
        if moment.hangs_up:
            return None
        error = OUT_OF_RANGE if offset < moment.log_start else 0
        stable = moment.high_watermark if moment.stable is None else moment.stable
        reach = stable if isolation == READ_COMMITTED else moment.high_watermark
        due = [base for base in sorted(moment.batches) if offset <= base < reach][: 0 if error else moment.at_once]
        content, last = b"", -1
        for base in due:
            if not content or len(content) < bytes_max:
                content, last = content + moment.batches[base], base
        content = content[: max(bytes_max, len(moment.batches[due[0]]))] if due else b""
        answer = Writer().put("ihi", 0, 0, 0).array(1).text(PARTITION.topic).array(1)
        answer.put("ihqqq", 0, error, moment.high_watermark, stable, moment.log_start)
        aborted = moment.aborted if isolation == READ_COMMITTED else ()
        told = [(producer_id, first) for producer_id, first, end in aborted if first <= last and end >= offset]
        answer.array(len(told))
        for one in told:
            answer.put("qq", *one)
        return answer.put("i", -1).blob(content)


@dataclass
class ScriptedCluster:
    """`leaders`: by question after the leader, the last one stays. Whoever does not lead says so."""

    brokers: dict[int, ScriptedReplica]
    leaders: list[int] = field(default_factory=lambda: [1])
    leader: int = 1
    earliest: list[int] = field(default_factory=lambda: [0])
    ports: dict[int, int] = field(default_factory=dict)
    ids: dict[int, tuple[str, int]] = field(default_factory=dict)
    """By broker: the cluster and the topic's id; a broker that is not in it is too old to know, and hangs up."""

    def metadata(self) -> Writer:
        leader = self.leaders.pop(0) if len(self.leaders) > 1 else self.leaders[0]
        return metadata(self.ports, {PARTITION.topic: [(leader, 0)]})

    def metadata_with_ids(self, broker: int) -> Writer:
        cluster_id, topic_id = self.ids[broker]
        answer = Writer(flexible=True).tags().put("i", 0).array(0).text(cluster_id).put("i", 1).array(1)
        return answer.put("h", 0).text(PARTITION.topic).put("qqb", 0, topic_id, 0).array(0).put("i", 0).tags().tags()

    def first(self, broker: int) -> Writer:
        leads = broker == self.leader
        start = (self.earliest.pop(0) if len(self.earliest) > 1 else self.earliest[0]) if leads else -1
        answer = Writer().put("i", 0).array(1).text(PARTITION.topic).array(1)
        return answer.put("ihqqi", 0, 0 if leads else NOT_REPLICA, -1, start, 0)

    def answer(self, asked: Request) -> Writer | None:
        if asked.key == METADATA and asked.version >= WITH_IDS:
            return self.metadata_with_ids(asked.broker) if asked.broker in self.ids else None
        if asked.key != FETCH:
            return self.first(asked.broker) if asked.key == LIST_OFFSETS else self.metadata()
        head = asked.fields()
        isolation = head.take("iiiibii")[4]
        head.array()
        head.text()
        head.array()
        _, _, offset, _, bytes_max = head.take("iiqqi")
        return self.brokers[asked.broker].answer(offset, isolation=isolation, bytes_max=bytes_max)


@contextmanager
def running(cluster: ScriptedCluster) -> Iterator[Connection]:
    with listening(cluster.brokers, cluster.answer) as cluster.ports:
        yield Connection.parse(f"127.0.0.1:{cluster.ports[1]}", {})


def audited(copied: CopiedReplicas) -> PartitionAudit:
    groups = replicas_of([(str(n), find_partitions([str(path)])) for n, path in sorted(copied.directories.items())])
    return audit(groups, InProcess())[0]


def log(*records: tuple[int, bytes, bytes | None]) -> dict[int, bytes]:
    return {offset: record(offset, key, value) for offset, key, value in records}


WRITTEN = log((0, b"k", b"1"), (1, b"a", b"1"), (2, b"k", b"2"), (3, b"b", b"1"))
LATE = [Moment(WRITTEN, 4, stable=1, at_once=9)] * 4
"""As it is read, and asked for again once."""


def calm(batches: dict[int, bytes] = WRITTEN, high_watermark: int = 4) -> ScriptedReplica:
    return ScriptedReplica([Moment(batches, high_watermark, at_once=9)])


def test_a_last_stable_offset_that_comes_a_moment_after_the_high_watermark_is_asked_for_again(tmp_path: Path) -> None:
    late = ScriptedReplica([*LATE, Moment(WRITTEN, 4)])
    with running(ScriptedCluster({1: calm(), 2: late})) as connection:
        live = audit_partition(connection, PARTITION, SilentRunner(), last=2, work=tmp_path)
    assert [judgement.problems for judgement in live.judgements.values()] == [()]
    assert late.fetched[-2:] == [1, 1], "asked from where it stood, until it was there"


def test_a_broker_that_tells_no_more_keeps_nobody_from_asking_the_others_again(tmp_path: Path) -> None:
    gone = ScriptedReplica([*LATE[:-1], Moment(WRITTEN, 4, hangs_up=True)])
    late = ScriptedReplica([*LATE, Moment(WRITTEN, 4)])
    with running(ScriptedCluster({1: calm(), 2: gone, 3: late})) as connection:
        live = audit_partition(connection, PARTITION, SilentRunner(), last=3, work=tmp_path)
    (judgement,) = live.judgements.values()
    assert judgement.problems == ("broker 2 serves read_committed consumers up to 1 only; its records say 4",)


def test_a_connection_that_is_lost_says_nothing_about_settings_by_which_others_have_answered(tmp_path: Path) -> None:
    lost = ScriptedReplica([Moment(WRITTEN, 4, hangs_up=True)])
    with running(ScriptedCluster({1: calm(), 2: lost})) as connection:
        copied = copy_partition(connection, PARTITION, tmp_path, last=2)
    ((problem,),) = copied.problems.values()
    assert problem.endswith("does not answer: the broker closed the connection")


def test_a_broker_that_goes_on_serving_less_than_its_records_say_is_a_problem(tmp_path: Path) -> None:
    frozen = ScriptedReplica([Moment(WRITTEN, 4, stable=1, at_once=9)])
    with running(ScriptedCluster({1: calm(), 2: frozen})) as connection:
        copied = copy_partition(connection, PARTITION, tmp_path, last=2)
        one = audited(copied)
        copied = ask_stable_again(connection, one, copied, until_s=time.monotonic() + 0.3)
    assert list(withheld(copied, one)) == ["2"]


def test_many_partitions_that_stay_behind_share_their_time_and_each_is_asked_once_more(tmp_path: Path) -> None:
    late = ScriptedReplica([*LATE[:-1], Moment(WRITTEN, 4)])
    frozen = ScriptedReplica([Moment(WRITTEN, 4, stable=1, at_once=9)])
    with running(ScriptedCluster({1: calm(), 2: late, 3: frozen})) as connection:
        copied = copy_partition(connection, PARTITION, tmp_path, last=3)
        one, asked = audited(copied), len(frozen.fetched)
        copied = ask_stable_again(connection, one, copied, until_s=time.monotonic())
    assert (list(withheld(copied, one)), len(frozen.fetched) - asked) == (["3"], 1)


@pytest.mark.parametrize("again", [b"3", None])
def test_a_cleaner_that_works_in_front_of_the_reading_makes_no_finding(tmp_path: Path, again: bytes | None) -> None:
    """k=2 goes after k=1 was read: the copy has an old value, and behind its end what superseded both."""
    newer = (4, b"k", again)
    cleaned = log((1, b"a", b"1"), (3, b"b", b"1"), newer)
    racing = ScriptedReplica([*[Moment(WRITTEN, 4)] * 3, Moment(cleaned, 5)])
    with running(ScriptedCluster({1: calm(), 2: racing})) as connection:
        copied = copy_partition(connection, PARTITION, tmp_path, last=2)
    one = audited(copied)
    facts = {each.name: (each.trusted_end, each.log_end) for each in one.results[0].facts}
    assert facts == {"1": (4, 4), "2": (4, 5)}
    assert (findings_of(one), one.problems, copied.problems) == ([], (), {})


def test_an_answer_in_several_parts_tells_of_all_its_transactions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part tells those that it has records of. One that is not known of is read as if it had been committed."""
    history = History()
    history.append("P1[a,b] A1 P2[c,d] A2 N[e,f] P1[g,h] A1 N[i,j]")
    batches = {batch.base_offset: to_bytes(batch) for segment in history.segments for batch in segment.batches}
    aborted = ((1, 0, 2), (2, 3, 5), (1, 8, 10))
    whole = b"".join(batches.values())
    monkeypatch.setattr(replicas, "FETCH_BYTES", max(map(len, batches.values())) * 3 // 2)
    brokers = {
        number: ScriptedReplica([Moment(batches, 13, stable=stable, at_once=9, aborted=aborted)])
        for number, stable in ((1, 13), (2, 8))
    }
    with running(ScriptedCluster(brokers)) as connection:
        copied = copy_partition(connection, PARTITION, tmp_path, last=2)
    told = {}
    for number, directory in copied.directories.items():
        log = directory / "t-0" / f"{0:020d}.log"
        assert log.read_bytes() == whole, "parts that were cut off came again, and none came twice"
        told[number] = [
            (one.producer_id, one.first_offset, one.last_offset) for one in read_aborted(log.with_suffix(".txnindex"))
        ]
    assert told == {1: [*aborted], 2: [*aborted[:2]]}, "beyond the last stable offset a broker tells of none"
    assert len(brokers[1].fetched) > 5


def test_what_is_written_faster_than_it_is_read_is_not_followed_for_ever(tmp_path: Path) -> None:
    many = log(*((offset, b"k%d" % offset, b"v") for offset in range(200)))
    racing = ScriptedReplica([Moment(many, min(4 + 2 * n, 200)) for n in range(150)])
    with running(ScriptedCluster({1: racing})) as connection:
        copied = copy_partition(connection, PARTITION, tmp_path, last=1)
    assert copied.problems == {}
    assert len(racing.fetched) == 7 + replicas.TAIL_FETCHES_MAX, (
        "how far it is, six batches up to there, and a few more"
    )


def test_a_log_that_begins_later_while_it_is_read_is_read_from_there(tmp_path: Path) -> None:
    moved = {3: WRITTEN[3]}
    shortened = ScriptedReplica([*[Moment(WRITTEN, 4)] * 3, Moment(moved, 4, log_start=3, at_once=9)])
    cluster = ScriptedCluster({1: calm(), 2: shortened}, earliest=[0, 3])
    with running(cluster) as connection:
        copied = copy_partition(connection, PARTITION, tmp_path, last=2)
    one = audited(copied)
    assert [facts.log_start for facts in one.results[0].facts] == [0, 3]
    assert (findings_of(one), one.problems, copied.problems) == ([], (), {})


def test_who_leads_now_says_where_the_log_begins(tmp_path: Path) -> None:
    cluster = ScriptedCluster({1: calm(), 2: calm()}, leaders=[1, 1, 2], leader=2)
    with running(cluster) as connection:
        copied = copy_partition(connection, PARTITION, tmp_path, last=1)
    assert (copied.leaders, copied.problems) == ({"t-0": 2}, {})
    assert sorted(copied.directories) == [1, 2]


def test_a_replica_that_never_reaches_the_beginning_is_not_read_and_keeps_nobody_waiting_for_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicas, "SETTLE_PAUSE_S", 0.01)
    short = ScriptedReplica([Moment(WRITTEN, 4, log_start=9)])
    with running(ScriptedCluster({1: calm(), 2: short})) as connection:
        copied = copy_partition(connection, PARTITION, tmp_path, last=2)
    assert sorted(copied.directories) == [1]
    assert copied.problems == {
        "t-0": ("the replica on broker 2 was not read: offset 0, where the leader's log starts, is out of its range",)
    }


@pytest.mark.parametrize(
    ("second", "why"),
    [
        (("one", 1), None),
        (("one", 2), "different topics of the same name: 1 has topic id AAAAAAAAAAAAAAAAAAAAAQ, 2 has topic id "),
        (("two", 1), "they are of different clusters: 1 has cluster.id one, 2 has cluster.id two"),
        (None, None),
    ],
    ids=["the same", "another topic", "another cluster", "too old to know"],
)
def test_what_each_broker_takes_it_for_is_known(
    second: tuple[str, int] | None, why: str | None, tmp_path: Path
) -> None:
    ids = {1: ("one", 1)} | ({} if second is None else {2: second})
    with running(ScriptedCluster({1: calm(), 2: calm()}, ids=ids)) as connection:
        one = audited(copy_partition(connection, PARTITION, tmp_path, last=2))
    assert str(one.different).startswith(str(why))
    assert one.problems == (() if why is None else (one.different,))
    assert len(one.results) == (why is None)
