"""What a reading of all replicas says of each of them: right, wrong, or not to be judged."""

from __future__ import annotations

from pathlib import Path

from headstone.cluster.replicas import Copied
from headstone.coordination.guard_values import Verdict
from headstone.errors import CorruptLog, HeadstoneError, Unfinished
from headstone.guard.verification import Judged, judge
from headstone.log.checkpoints import HIGH_WATERMARK, write_offsets
from headstone.log.directory import find_partitions
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.auditing import audit, replicas_of
from headstone.pipeline.inprocess import InProcess
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
) -> dict[int, Judged]:
    """replicas: the log and the high watermark of each broker, the leader's first."""
    for broker, (terms, high_watermark) in replicas.items():
        history = History()
        history.append(terms)
        history.write_partition(root / str(broker), str(PARTITION))
        write_offsets(root / str(broker) / HIGH_WATERMARK, {PARTITION: high_watermark})
    name = str(PARTITION)
    copied = Copied(
        directories={broker: root / str(broker) for broker in replicas},
        stable={(name, broker): stable for broker in replicas}, leaders={name: next(iter(replicas))},
        failures={(name, broker): error for broker, error in (failures or {}).items()},
    )  # fmt: skip
    groups = replicas_of([(str(broker), find_partitions([str(root / str(broker))])) for broker in replicas])
    return judge(copied, audit(groups, InProcess())[0])


def verdicts(judgements: dict[int, Judged]) -> dict[int, Verdict]:
    return {broker: one.verdict for broker, one in judgements.items()}


def test_the_one_that_missed_a_deletion_is_wrong_and_the_others_are_right(tmp_path: Path) -> None:
    found = judged(tmp_path, {1: (RIGHT, END), 2: (RIGHT, END), 3: (FORGOT, END)})
    assert verdicts(found) == {1: Verdict.RIGHT, 2: Verdict.RIGHT, 3: Verdict.WRONG}
    assert found[3].why.startswith("deleted-reappears at offset 0: ")
    assert found[1] == Judged(verdict=Verdict.RIGHT)


def test_who_has_not_heard_of_all_that_is_committed_is_not_judged(tmp_path: Path) -> None:
    found = judged(tmp_path, {1: (RIGHT, END), 3: (RIGHT, 4)})
    assert found == {
        1: Judged(verdict=Verdict.RIGHT),
        3: Judged(
            verdict=Verdict.UNJUDGED,
            why="it has heard of what is committed up to 4 only, of 5: it was not compared beyond",
            behind=True,
        ),
    }


def test_a_replica_that_cannot_be_read_says_nothing_of_the_others(tmp_path: Path) -> None:
    torn = CorruptLog(file="0.log", position=7, offset=1, problem="no batch")
    found = judged(tmp_path, {1: (RIGHT, END), 2: (RIGHT, END)}, failures={3: torn, 4: Unfinished("it is off")})
    assert found == {
        1: Judged(verdict=Verdict.RIGHT), 2: Judged(verdict=Verdict.RIGHT),
        3: Judged(
            verdict=Verdict.UNJUDGED,
            why="the replica on broker 3 was not read: 0.log, position 7, offset 1: no batch",
        ),
        4: Judged(verdict=Verdict.UNJUDGED, why="the replica on broker 4 was not read: it is off", read=False),
    }  # fmt: skip


def test_one_replica_alone_is_not_judged(tmp_path: Path) -> None:
    assert verdicts(judged(tmp_path, {1: (RIGHT, END)})) == {1: Verdict.UNJUDGED}


def test_a_broker_that_serves_less_than_its_records_say_is_not_judged(tmp_path: Path) -> None:
    found = judged(tmp_path, {1: (RIGHT, END), 3: (RIGHT, END)}, stable=2)
    assert verdicts(found) == {1: Verdict.UNJUDGED, 3: Verdict.UNJUDGED}
    assert found[3].why == "broker 3 serves read_committed consumers up to 2 only; its records say 5"


def test_if_the_leader_was_not_read_nobody_is_judged(tmp_path: Path) -> None:
    gone = Unfinished("it said nothing for 10 s")
    copied = Copied(directories={}, failures={("t-0", 1): gone, ("t-0", 3): gone})
    assert verdicts(judge(copied, None)) == {1: Verdict.UNJUDGED, 3: Verdict.UNJUDGED}
