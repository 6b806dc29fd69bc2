"""The directory of a running broker: every verb reads it as far as whole batches go, whatever is being written just then."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from headstone.cli.main import main
from headstone.log.directory import find_partitions
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.inspection import inspect_each
from headstone.retention.policy import Policy
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample
from tests.cli.scenes import answer, write_log
from tests.logs import HOLD, batch_of, owner
from tests.oracle.batches import Record, encode

NAMES = ("a-0", "b-0")
END = 4
"""Of each log."""
HEADER_BYTES, LENGTH_AT = 61, 8
APPEND = """
import fcntl, os, sys, time
lock = open(sys.argv[1], "w")
fcntl.lockf(lock, fcntl.LOCK_EX)
logs = [os.open(path, os.O_WRONLY | os.O_APPEND) for path in sys.argv[3:]]
batches = [bytes.fromhex(line) for line in open(sys.argv[2])]
print(flush=True)
for number, batch in enumerate(batches):
    cut = 1 + number % (len(batch) - 1)
    for log in logs:
        os.write(log, batch[:cut])
    time.sleep(0.0005)
    for log in logs:
        os.write(log, batch[cut:])
sys.stdin.read()
"""


def batch(offset: int, value: bytes = b"v") -> bytes:
    return encode(batch_of(Record(offset=offset, timestamp=1, key=b"k%d" % offset, value=value)))


@pytest.fixture
def logs(tmp_path: Path) -> Path:
    for name in NAMES:
        write_log(tmp_path / "logs", "N[a] N[b] | T[a] N[c]", name)
    return tmp_path / "logs"


def active(partition: Path) -> Path:
    return max(partition.glob("*.log"))


def half_written(partition: Path, size: int) -> int:
    """How long it was before."""
    log = active(partition)
    whole = log.read_bytes()
    log.write_bytes(whole + batch(END)[:size])
    return len(whole)


SIZES = (1, LENGTH_AT + 2, HEADER_BYTES - 1, HEADER_BYTES, len(batch(END)) - 1)


@pytest.mark.parametrize("size", SIZES)
def test_half_a_batch_is_not_there_yet_for_any_verb(
    size: int, logs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(logs, tmp_path / "other")
    length = half_written(logs / "b-0", size)
    lake, out = str(tmp_path / "lake"), tmp_path / "out"
    assert main(["lake", "init", lake]) == 0
    with owner(HOLD, logs / ".lock"):
        for path in (logs, active(logs / "b-0")):
            assert answer(capsys, "inspect", path, "--records")["partitions"][-1]["log_end"] == END
        assert answer(capsys, "audit", logs, tmp_path / "other")["verdict"] == "clean"
        ingested = answer(capsys, "lake", "ingest", lake, logs)["partitions"]
        assert [(one["partition"], one["end"]) for one in ingested] == [(name, END) for name in NAMES]
        answer(capsys, "compact", logs, "--out", out, "--engine", "process")
    assert active(out / "b-0").read_bytes() == active(tmp_path / "other" / "b-0").read_bytes()
    assert len(active(out / "b-0").read_bytes()) == length
    for words in (["inspect", logs], ["compact", logs, "--out", f"{out}-2", "--engine", "process"]):
        assert main(list(map(str, words))) in (2, 3)
        assert "b-0: NOT " in capsys.readouterr().err
    assert main(["lake", "ingest", lake, str(logs)]) == 2
    assert "torn tail" in capsys.readouterr().err


def test_half_a_batch_in_front_of_others_is_damage_also_where_somebody_writes(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A length that says too much hides what is behind it; the index knows that there is something."""
    settings = SampleSettings(topic="t", records=3000, keys=300, segment_bytes=200_000, batch_bytes=2000)
    root = write_sample(tmp_path / "logs", settings)[0]
    log = max((root / "t-0").glob("*.log"), key=lambda path: path.stat().st_size)
    for later in (path for path in (root / "t-0").iterdir() if path.name[:20].isdigit() and path.stem > log.stem):
        later.unlink()
    content = bytearray(log.read_bytes())
    position = 0
    while position < len(content) // 2:
        position += struct.unpack_from(">i", content, position + LENGTH_AT)[0] + 12
    struct.pack_into(">i", content, position + LENGTH_AT, len(content))
    log.write_bytes(content)
    with owner(HOLD, root / ".lock"):
        assert main(["inspect", str(root)]) == 2
        assert f"{log}, position {position}, " in capsys.readouterr().err
        log.write_bytes(content[: position + 100])
        assert main(["inspect", str(root)]) == 0


def test_an_older_segment_is_whole_whoever_writes(logs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    older = min((logs / "b-0").glob("*.log"))
    older.write_bytes(older.read_bytes() + batch(2)[:30])
    with owner(HOLD, logs / ".lock"):
        for path in (logs, older):
            assert main(["inspect", str(path)]) == 2
            assert "torn tail" in capsys.readouterr().err


def test_a_log_that_is_written_to_all_the_time_is_read_every_time(logs: Path, tmp_path: Path) -> None:
    """Every look lists, surveys and reads while batches come in two pieces, cut anywhere."""
    count = 3000
    batches = [batch(END + number, b"v" * (number % 200)) for number in range(count)]
    (tmp_path / "batches").write_text("\n".join(map(bytes.hex, batches)))
    ends: list[int] = []
    with owner(APPEND, logs / ".lock", tmp_path / "batches", *(active(logs / name) for name in NAMES)):
        while not ends or ends[-1] < END + count:
            done = inspect_each(find_partitions([logs]), Policy(now_ms=0), InProcess(1), None)
            assert [str(failure.error) for failure in done.failed] == []
            ends += [min(facts.candidate.survey.log_end for facts in done.facts)]
    assert ends == sorted(ends)
