"""The bodies of the tasks: what they read is what was planned, byte by byte, in each of the two reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headstone.errors import CorruptLog
from headstone.log.directory import as_partition
from headstone.pipeline.planning import as_candidate, partition_work, pass_over, survey_directory
from headstone.pipeline.progress import Meter
from headstone.pipeline.work import PartitionWork, mark_all, write_group
from headstone.retention.keys import HashKey
from headstone.retention.passes import PieceReader, PieceRewriter
from headstone.retention.policy import NO_LIMIT, Policy
from tests.logs import write_log
from tests.oracle.batches import changed, parse_log, to_bytes

LOG = "N[a,b] P1[c] C1 N[a] N[d]/zstd |"
"""The first batch is rebuilt, the second copied without its transactional bit, the others are copied."""


def planned(root: Path) -> PartitionWork:
    directory = as_partition(write_log(root, LOG) / "t-0")
    assert directory is not None
    policy = Policy(now_ms=9000, plain_below=NO_LIMIT)
    found = as_candidate(directory, survey_directory(directory), policy, dirty_from=None, peers=())
    (root / "work").mkdir()
    return partition_work(found, pass_over(found, HashKey(1, 2)), root / "work")


def segment(root: Path) -> Path:
    return root / "t-0" / f"{0:020d}.log"


def indexed(work: PartitionWork) -> np.ndarray:
    states = np.zeros(work.records, dtype=np.uint8)
    mark_all(work, states, Meter(None))
    return states


def rewrite(work: PartitionWork, states: np.ndarray) -> int:
    group = work.groups[0]
    done = write_group(work, group, states, PieceRewriter(work.cleaning), PieceReader(), Meter(None))
    return sum(output.records for output in done.outputs)


def flipped(number: int) -> Callable[[Path], None]:
    """The last byte of that batch, which is a record's."""

    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        sizes = [len(to_bytes(batch)) for batch in parse_log(bytes(content))]
        content[sum(sizes[: number + 1]) - 2] ^= 1
        path.write_bytes(content)

    return damage


def another_value(path: Path) -> None:
    """Of the same size, and with a checksum that is right."""
    first, *rest = parse_log(path.read_bytes())
    records = tuple(replace(record, value=b"xx") for record in first.records)
    path.write_bytes(b"".join(map(to_bytes, [changed(first, records=records), *rest])))


def one_more(path: Path) -> None:
    batches = parse_log(path.read_bytes())
    again = changed(
        batches[0], base_offset=99, records=tuple(replace(r, offset=r.offset + 99) for r in batches[0].records)
    )
    path.write_bytes(b"".join(map(to_bytes, [*batches, again])))


def one_less(path: Path) -> None:
    path.write_bytes(b"".join(map(to_bytes, parse_log(path.read_bytes())[:-1])))


def in_the_last_header(at: int) -> Callable[[Path], None]:
    """Base offset and leader epoch are not under the checksum."""

    def damage(path: Path) -> None:
        content = bytearray(path.read_bytes())
        content[len(content) - len(to_bytes(parse_log(bytes(content))[-1])) + at] += 1
        path.write_bytes(content)

    return damage


WRONG_CRC, CHANGED = "wrong CRC-32C", "the file changed"
DAMAGES = {
    "a batch that is rebuilt": (flipped(0), WRONG_CRC),
    "a batch that becomes plain": (flipped(1), WRONG_CRC),
    "a marker": (flipped(2), WRONG_CRC),
    "a batch that is copied": (flipped(3), WRONG_CRC),
    "a compressed batch": (flipped(4), WRONG_CRC),
    "another value": (another_value, CHANGED),
    "another offset": (in_the_last_header(7), CHANGED),
    "another leader epoch": (in_the_last_header(15), CHANGED),
    "one more batch": (one_more, CHANGED),
    "one batch less": (one_less, "became shorter|the file changed"),
}


@pytest.mark.parametrize("name", DAMAGES)
@pytest.mark.parametrize("when", ["before the first read", "between the two reads"])
def test_bytes_that_are_not_those_that_were_planned_get_no_new_checksum(name: str, when: str, tmp_path: Path) -> None:
    damage, message = DAMAGES[name]
    work = planned(tmp_path)
    if when == "between the two reads":
        states = indexed(work)
        damage(segment(tmp_path))
        with pytest.raises(CorruptLog, match=message):
            rewrite(work, states)
    else:
        damage(segment(tmp_path))
        with pytest.raises(CorruptLog, match=message):
            indexed(work)


def test_bytes_that_stay_as_they_are_do(tmp_path: Path) -> None:
    work = planned(tmp_path)
    assert rewrite(work, indexed(work)) == 5
