"""Every acceptance case through `compact`: real directories in, real directories out, read with the oracle's parser."""

from __future__ import annotations

from pathlib import Path

import pytest

from headstone.pipeline.compaction import CompactionRequest, compact
from headstone.pipeline.inprocess import InProcess
from tests.oracle.cases import Append, Case, mismatches, observe, parse_cases
from tests.oracle.files import read_partition
from tests.oracle.notation import History
from tests.policies import policy_of

CASES = [
    (path.stem, case) for path in sorted(Path(__file__).parent.glob("*.case")) for case in parse_cases(path.read_text())
]


def run_case(case: Case, tmp_path: Path, path: str, in_place: bool) -> list[str]:
    history = History()
    logs, next_dirty, problems = tmp_path / "0", 0, []
    for number, step in enumerate(case.steps):
        if isinstance(step, Append):
            history.append(step.text)
            history.write_partition(logs, "t-0")
            continue
        high = step.settings.high_watermark
        (logs / "replication-offset-checkpoint").unlink(missing_ok=True)
        if high is not None:
            (logs / "replication-offset-checkpoint").write_text(f"0\n1\nt 0 {high}\n")
        start = step.settings.dirty_start
        out = None if in_place else tmp_path / str(number + 1)
        request = CompactionRequest(
            paths=(str(logs),), out=out, policy=policy_of(step.settings), path=path, progress=False,
            dirty_from=next_dirty if start is None else start,
        )  # fmt: skip
        report = compact(request, InProcess(), lambda text: None).partitions[0]
        logs = logs if in_place else tmp_path / str(number + 1)
        next_dirty = report.dirty_end
        segments = read_partition(logs / "t-0")
        history.install(segments)
        seen = observe(segments, next_dirty=report.dirty_end, invalid=report.reasons.get("keyless", 0))
        problems += mismatches(step, seen)
    return problems


@pytest.mark.parametrize(("path", "in_place"), [("whole", False), ("shuffle", True)])
@pytest.mark.parametrize(("file", "case"), CASES, ids=[f"{file}-{case.name}" for file, case in CASES])
def test_case(file: str, case: Case, path: str, in_place: bool, tmp_path: Path) -> None:
    assert run_case(case, tmp_path, path, in_place) == []
