"""One partition that is damaged, incomplete or refused keeps no other out of the lake, however they are packed."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from headstone.errors import CorruptLog, HeadstoneError, Unfinished, UsageError
from headstone.lake.jobs.erasure import make_lakes_own
from headstone.lake.lake import Lake
from headstone.lake.metastore.commits import CommitRefused
from headstone.lake.metastore.listeners import Listeners
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.transfer.ingest import LogIngestSettings, ingest
from headstone.lake.transfer.ingest_tasks import IngestWork
from headstone.log.checkpoints import LEADER_EPOCHS
from headstone.log.directory import find_partitions
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.progress import Board
from tests.lake.test_ingest_tasks import Engine
from tests.oracle.notation import History


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    """Four partitions of twenty records each, which share an object."""
    for number in range(4):
        history = History()
        history.append(" ".join(f"N[k{i}]" for i in range(20)))
        history.roll()
        history.write_partition(tmp_path / "logs", f"t-{number}")
    return tmp_path / "logs"


def ends(lake: Lake) -> list[int]:
    return list(lake.metastore.next_offsets().values())


def damage(partition: Path) -> None:
    """A batch whose checksum is wrong: the survey, which reads headers, does not notice."""
    log = min(partition.glob("*.log"))
    data = bytearray(log.read_bytes())
    data[len(data) // 2 + 20] ^= 0xFF
    log.write_bytes(data)


def leave_unfinished(partition: Path) -> None:
    (partition / "00000000000000000000.log.cleaned").write_bytes(b"x")


def spoil_epochs(partition: Path) -> None:
    (partition / LEADER_EPOCHS).write_text("0\n1\nnone\n")


@pytest.mark.parametrize("harm", [damage, leave_unfinished, spoil_epochs])
@pytest.mark.parametrize("harmed", [(1,), (0, 2)])
def test_all_others_come_in_and_the_error_is_told(lake: Lake, logs: Path, harm: Any, harmed: tuple[int, ...]) -> None:
    for number in harmed:
        harm(logs / f"t-{number}")
    told: list[str] = []
    board = Board()
    with pytest.raises(HeadstoneError, match=f"t-{harmed[0]}") as caught:
        ingest(lake, find_partitions([logs]), clock=lambda: 1, tell=told.append, board=board)
    board.close()
    assert caught.value.exit_code == 2
    assert ends(lake) == [0 if number in harmed else 20 for number in range(4)]
    names = [f"t-{number} was not ingested to its end" for number in harmed] if len(harmed) > 1 else []
    assert [text.partition(":")[0] for text in told] == names
    assert (lake.metastore.check(), {row.state for row in lake.metastore.objects().values()}) == ([], {"committed"})


def test_a_gap_of_one_partition_is_its_own(lake: Lake, logs: Path) -> None:
    ingest(lake, find_partitions([logs / "t-1"]), clock=lambda: 1)
    grown = History()
    grown.append(" ".join(f"N[k{i}]" for i in range(40)))
    grown.roll()
    shutil.rmtree(logs / "t-1")
    grown.write_partition(logs, "t-1")
    (logs / "log-start-offset-checkpoint").write_text("0\n1\nt 1 30\n")
    with pytest.raises(UsageError, match="t-1: the lake ends at 20, this log begins at 30"):
        ingest(lake, find_partitions([logs]), clock=lambda: 2)
    assert ends(lake) == [20, 20, 20, 20]


def test_of_an_object_that_is_refused_the_others_come_in(
    lake: Lake, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else was faster with one of its partitions."""
    real = Metastore.append

    def late(self: Metastore, *arguments: Any, **options: Any) -> None:
        monkeypatch.setattr(Metastore, "append", real)
        ingest(lake, find_partitions([logs / "t-2"]), clock=lambda: 2)
        real(self, *arguments, **options)

    monkeypatch.setattr(Metastore, "append", late)
    with pytest.raises(CommitRefused, match="append at 0, but the log ends at 20"):
        ingest(lake, find_partitions([logs]), clock=lambda: 1)
    assert (ends(lake), lake.metastore.check()) == ([20, 20, 20, 20], [])


def test_a_store_that_may_not_be_told_of_a_commit_ends_the_run_with_its_own_error(lake: Lake, logs: Path) -> None:
    """What is in the lake by then is not uploaded again, to be refused for a reason that is none."""

    def refused() -> None:
        if any(ends(lake)):
            raise UsageError("access refused")

    lake.metastore.after_commit = Listeners(refused)
    with pytest.raises(UsageError, match="access refused"):
        ingest(lake, find_partitions([logs]), clock=lambda: 1)
    assert (ends(lake), len(lake.metastore.objects())) == ([20, 20, 20, 20], 1)


def test_a_topic_that_becomes_the_lakes_own_during_a_run_gets_nothing_more(
    lake: Lake, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Metastore.append

    def late(self: Metastore, *arguments: Any, **options: Any) -> None:
        make_lakes_own(lake, "t")
        real(self, *arguments, **options)

    monkeypatch.setattr(Metastore, "append", late)
    with pytest.raises(UsageError, match="its offsets are no longer those of any Kafka topic"):
        ingest(lake, find_partitions([logs]), clock=lambda: 1)
    assert ends(lake) == [0, 0, 0, 0]


def test_a_store_that_is_away_is_not_asked_for_ever(lake: Lake, logs: Path) -> None:
    """Once for the object, and once more for a wave of its partitions."""
    begun: list[int] = []

    def fails(work: IngestWork) -> bool:
        begun.append(len(work.shares))
        return True

    with pytest.raises(Unfinished, match="an executor was lost"):
        ingest(
            lake,
            find_partitions([logs]),
            clock=lambda: 1,
            engine=Engine(fails, ran=False),
            settings=LogIngestSettings(wave_objects=3),
        )
    assert (begun[0], begun[1:], ends(lake)) == (4, [1, 1, 1], [0, 0, 0, 0])


def test_what_is_wrong_with_the_data_is_raised_before_what_was_unfinished(lake: Lake, logs: Path) -> None:
    damage(logs / "t-3")
    engine = Engine(lambda work: work.shares[0].topic_partition == TopicPartition("t", 0), ran=False)
    with pytest.raises(CorruptLog, match="t-3"):
        ingest(lake, find_partitions([logs]), clock=lambda: 1, engine=engine)
    assert ends(lake) == [0, 20, 20, 0]
