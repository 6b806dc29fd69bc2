"""The stages as functions over rows: what a task is sent, and what it does with rows that are lost, doubled or late."""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from headstone.errors import Unfinished
from headstone.log import codecs
from headstone.log.directory import find_partitions
from headstone.pipeline import work as bodies
from headstone.pipeline.planning import as_candidate, partition_work, pass_over, survey_directory
from headstone.pipeline.progress import BoardAddress, Meter
from headstone.pipeline.splitting import SplitWorks, split_works
from headstone.pipeline.work import PartitionWork, compact_whole
from headstone.retention.keys import HashKey
from headstone.retention.policy import Policy, kafka_rules
from headstone.sim.synth import SampleSettings, write_sample
from headstone.spark.engine import OnSpark
from headstone.spark.stages import WORK_SENDER, Counted, answering, indexing, racing, rewriting

BOARD = Counted(address=BoardAddress(host="127.0.0.1", port=9, token=bytes(16)), first=10**9)
UNCOUNTED = Counted(address=None, first=0)
GROWTH_BYTES_MAX = 64
"""Numbers of many tasks take some bytes more than numbers of few."""

Rows = list[dict[str, Any]]


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PartitionWork:
    monkeypatch.setattr(bodies, "UNIT_BYTES", 20_000)
    settings = SampleSettings(topic="t", records=3_000, keys=400, codec=codecs.NONE, segment_bytes=40_000)
    write_sample(tmp_path / "logs", settings)
    (directory,) = find_partitions([str(tmp_path / "logs")])
    policy = kafka_rules(Policy(now_ms=1_800_000_000_000, segment_bytes=80_000))
    found = as_candidate(directory, survey_directory(directory), policy, dirty_from=0, peers=())
    (tmp_path / "work").mkdir()
    return partition_work(found, pass_over(found, HashKey(1, 2)), tmp_path / "work")


def run(stage: Callable[[Any], Any], rows: Iterable[dict[str, Any]]) -> Rows:
    return [row for batch in stage(iter([pa.RecordBatch.from_pylist(list(rows))])) for row in batch.to_pylist()]


def messages_of_units(works: SplitWorks) -> Rows:
    return run(indexing(UNCOUNTED), ({"id": i, "work": pickle.dumps(unit)} for i, unit in enumerate(works.units)))


def with_works(rows: Rows, works: Iterable[Any]) -> Rows:
    empty = {"sender": WORK_SENDER, "lost": 0, "keys": 0, "error": None}
    return rows + [{"id": i, "blob": pickle.dumps(work), **empty} for i, work in enumerate(works)]


def answered(rows: Rows) -> list[tuple[int, int, Any]]:
    return [pickle.loads(row["result"])[:3] for row in rows]


def outputs(answers: Iterable[tuple[int, int, Any]], work: PartitionWork) -> list[tuple[int, bytes]]:
    """Base and bytes of what the groups have written."""
    done = [group for _, _, answer in sorted(answers, key=lambda answer: answer[0]) for group in answer.groups]
    return [
        (output.base, next(Path(work.work_dir).glob(f"{output.base:020d}.log*{output.attempt}*")).read_bytes())
        for group in done
        for output in group.outputs
    ]


def test_what_a_task_is_sent_does_not_grow_with_the_job(planned: PartitionWork) -> None:
    def sent(partitions: int) -> dict[str, int]:
        works = [replace(planned, path=f"{planned.path}/{number:06}") for number in range(partitions)]
        cut = split_works(works, parallelism=2)
        stages = {
            "whole": (answering(compact_whole, BOARD), works),
            "index": (indexing(BOARD), cut.units),
            "newest": (racing, cut.buckets),
            "rewrite": (rewriting(BOARD), cut.groups),
        }
        return {
            name: len(cloudpickle.dumps(stage)) + max(len(pickle.dumps(work)) for work in (some[0], some[-1]))
            for name, (stage, some) in stages.items()
        }

    alone, among_many = sent(1), sent(1000)
    assert {name: among_many[name] - alone[name] <= GROWTH_BYTES_MAX for name in alone} == dict.fromkeys(alone, True)
    assert max(alone.values()) < 1 << 16


@pytest.mark.parametrize("seed", range(3))
def test_rows_in_any_order_and_attempts_beside_each_other_give_the_same(planned: PartitionWork, seed: int) -> None:
    works = split_works([planned], parallelism=3)
    assert min(len(works.units), len(works.buckets), len(works.groups)) > 2
    shuffled = random.Random(seed)
    messages = with_works(messages_of_units(works), works.buckets)
    expected = outputs([(0, 0, compact_whole(planned, Meter()))], planned)
    for _ in range(2):
        shuffled.shuffle(messages)
        survivors = with_works(run(racing, messages), works.groups)
        shuffled.shuffle(survivors)
        assert outputs(answered(run(rewriting(UNCOUNTED), survivors)), planned) == expected


def lost(rows: Rows, sender: int, receiver: int) -> Rows:
    return [row for row in rows if (row["sender"], row["id"]) != (sender, receiver)]


def doubled(rows: Rows, sender: int, receiver: int) -> Rows:
    return rows + [row for row in rows if (row["sender"], row["id"]) == (sender, receiver)]


def instead(rows: Rows, sender: int, receiver: int) -> Rows:
    """As many rows as there should be, but one of another sender twice."""
    return lost(doubled(rows, sender + 1, receiver), sender, receiver)


@pytest.mark.parametrize("fault", [lost, doubled, instead])
@pytest.mark.parametrize("stage", ["newest", "rewrite"])
def test_a_message_too_few_or_too_many_is_noticed(
    planned: PartitionWork, stage: str, fault: Callable[[Rows, int, int], Rows]
) -> None:
    works = split_works([planned], parallelism=2)
    messages = messages_of_units(works)
    if stage == "newest":
        messages = fault(messages, 0, 1)
    survivors = run(racing, with_works(messages, works.buckets))
    if stage == "rewrite":
        survivors = fault(survivors, 0, 1)
    answers = answered(run(rewriting(UNCOUNTED), with_works(survivors, works.groups)))
    wrong = {number for number, _, answer in answers if isinstance(answer, Unfinished)}
    assert wrong == ({1} if stage == "rewrite" else set(range(len(works.groups))))


def test_a_bucket_that_was_sent_no_work_is_missed_by_every_group(planned: PartitionWork) -> None:
    works = split_works([planned], parallelism=2)
    messages = lost(with_works(messages_of_units(works), works.buckets), WORK_SENDER, 0)
    answers = answered(run(rewriting(UNCOUNTED), with_works(run(racing, messages), works.groups)))
    assert [type(answer) for _, _, answer in answers] == [Unfinished] * len(works.groups)


def after(calls: int) -> Callable[[], bool]:
    """Says stop when it was asked so many times."""
    asked = iter(range(calls))
    return lambda: next(asked, None) is None


def test_no_job_begins_after_stop_and_those_that_run_are_finished(spark: SparkSession, tmp_path: Path) -> None:
    """With jobs of one task: what is begun is seen by the files that tasks leave."""

    def body(task: str, meter: Meter) -> str:
        Path(task).touch()
        return task

    tasks = [str(tmp_path / f"{number:02}") for number in range(9)]
    answers = sorted(OnSpark(lambda: spark, parallelism=1).as_they_end(body, tasks, stop=after(3)))
    assert answers == list(enumerate(tasks))[:3]
    assert sorted(map(str, tmp_path.iterdir())) == tasks[:3]


def test_no_part_of_a_split_partition_begins_after_stop(spark: SparkSession, planned: PartitionWork) -> None:
    on_spark, parts = OnSpark(lambda: spark, parallelism=1), len(planned.parts())
    answers = [answer for _, answer in on_spark.split([planned], parts_at_once=1, stop=after(2))]
    done = [(number, 0, answer) for number, answer in enumerate(answers)]
    assert (parts > 2, outputs(done, planned)) == (
        True,
        outputs([(0, 0, compact_whole(planned, Meter()))], planned)[:2],
    )
