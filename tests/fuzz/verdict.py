"""Owns one fuzz input from seed to verdict: make it, inspect it, compact it, and say what is wrong with the answer.

An input is refused with a HeadstoneError and nothing written, or read right; anything else is a problem. Where the
oracle and Headstone disagree about whether an input can be read, the verdict says who is right, and why.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from headstone.errors import HeadstoneError
from headstone.log import reading
from headstone.log.directory import find_partitions
from headstone.pipeline import inprocess, work
from headstone.pipeline.inprocess import InProcess
from headstone.pipeline.inspection import PartitionFacts, inspect
from headstone.pipeline.report import PartitionReport
from headstone.retention import survey
from tests.fuzz import expected
from tests.fuzz.expected import Reading, Refused, Unjudged
from tests.fuzz.logs import DELETE_RETENTION_MS, NOW_MS, PARTITION, Files, small_log
from tests.fuzz.mutations import mutate
from tests.logs import compact_here
from tests.oracle.cleaner import CleanResult, Pass
from tests.oracle.reader import apply, read_committed, view
from tests.oracle.segments import Segment
from tests.policies import policy_of

INPUTS_PER_LOG = 40
UNTOUCHED_SHARE = 0.01
Answer = TypeVar("Answer")
Given = TypeVar("Given")


@dataclass(frozen=True, slots=True, kw_only=True)
class Input:
    seed: int
    files: Files
    done: tuple[str, ...]
    settings: Pass
    path: str
    small_chunks: bool


@dataclass(slots=True, kw_only=True)
class Verdict:
    seed: int
    done: tuple[str, ...]
    outcome: str = ""
    problems: list[str] = field(default_factory=list)


def make_input(seed: int) -> Input:
    chance = random.Random(f"input {seed}")
    files = dict(_log(seed // INPUTS_PER_LOG))
    done = () if chance.random() < UNTOUCHED_SHARE else tuple(mutate(files, chance))
    settings = Pass(
        now_ms=NOW_MS,
        delete_retention_ms=DELETE_RETENTION_MS,
        segment_bytes=chance.choice((1, 500, 2**30)),
        keys_max=chance.choice((None, None, None, 1, 3)),
        producer_expiration_ms=chance.choice((2**63 - 1, 10)),
        rules=chance.choice(("kafka", "coordinated")),
        mtro=chance.choice((0, 5, 2**63 - 1)),
        mxro=chance.choice((0, 5, 2**63 - 1)),
        plain_below=chance.choice((0, 5, 2**63 - 1)),
    )
    return Input(
        seed=seed, files=files, done=done, settings=settings, path=("whole", "shuffle")[seed % 2],
        small_chunks=chance.random() < 0.35,
    )  # fmt: skip


_made: dict[int, Files] = {}


def _log(seed: int) -> Files:
    """Neighbouring inputs share their log: it is dearer to make than to mutate."""
    if seed not in _made:
        _made.clear()
        _made[seed] = small_log(seed)
    return _made[seed]


def judge(given: Input, place: Path) -> Verdict:
    """Runs one input in `place`, which must not exist, and removes it again."""
    verdict = Verdict(seed=given.seed, done=given.done)
    logs, out = place / "in", place / "out"
    write(given.files, logs)
    cut_small(given.small_chunks)
    try:
        facts = _answer(lambda: _inspected(logs, given.settings), verdict)
        report = _answer(lambda: _compacted(logs, out, given), verdict)
        _check_sides(given, logs, out, report, verdict)
        _compare(given, facts, report, out / PARTITION, verdict)
    finally:
        shutil.rmtree(place)
    return verdict


def cut_small(small: bool) -> None:
    """Tables, chunks and units of a few batches, so that small logs have several."""
    reading.TABLE_ROWS = 5 if small else 512
    survey.CHUNK_BYTES = 300 if small else 2 << 20
    survey.CHUNK_RECORDS = 5 if small else 4 << 20
    work.UNIT_BYTES = 700 if small else 128 << 20
    work.UNIT_RECORDS = 7 if small else 16 << 20


class _InLine:
    """Stands in for a pool of threads: on small inputs, starting a thread costs more than its work."""

    def __init__(self, threads: int) -> None:
        assert threads > 0

    def __enter__(self) -> _InLine:
        return self

    def __exit__(self, *why: object) -> None:
        pass

    def map(self, body: Callable[[Given], Answer], tasks: Iterable[Given]) -> Iterator[Answer]:
        return map(body, tasks)


def run_in_line() -> None:
    """For this process, from now on."""
    inprocess.Threads = _InLine  # type: ignore[attr-defined, assignment]


def write(files: Files, directory: Path) -> None:
    (directory / PARTITION).mkdir(parents=True)
    for name, content in files.items():
        with open(f"{directory}/{name}", "wb", buffering=0) as file:
            file.write(content)


def contents(directory: Path) -> Files:
    """What `write` wrote, and whatever else there is now."""
    found: Files = {}
    for folder, _, names in os.walk(directory):
        inside = "" if folder == str(directory) else folder.removeprefix(f"{directory}/") + "/"
        for name in names:
            with open(f"{folder}/{name}", "rb", buffering=0) as file:
                found[inside + name] = file.read()
    return found


def _inspected(logs: Path, settings: Pass) -> PartitionFacts:
    facts = inspect(find_partitions([logs]), policy_of(settings), InProcess(), None)[0]
    json.dumps(facts.as_json())
    return facts


def _compacted(logs: Path, out: Path, given: Input) -> PartitionReport:
    return compact_here(logs, out=out, policy=policy_of(given.settings), path=given.path).partitions[0]


def _answer(question: Callable[[], Answer], verdict: Verdict) -> Answer | HeadstoneError:
    try:
        return question()
    except HeadstoneError as error:
        if not str(error).strip():
            verdict.problems.append(f"{type(error).__name__} without a message")
        return error


def _check_sides(given: Input, logs: Path, out: Path, report: object, verdict: Verdict) -> None:
    """The input is as it was; after a refusal the output is not there at all."""
    left = contents(logs)
    if left != given.files:
        changed = sorted(name for name in left.keys() | given.files.keys() if left.get(name) != given.files.get(name))
        verdict.problems.append(f"the input changed: {changed}")
    made = sorted(path.name for path in out.iterdir()) if out.exists() else []
    if isinstance(report, HeadstoneError) and made:
        verdict.problems.append(f"refused, but left {made}")
    if any(name.startswith(".headstone") for name in made):
        verdict.problems.append(f"left work files: {made}")


def _compare(
    given: Input,
    facts: PartitionFacts | HeadstoneError,
    report: PartitionReport | HeadstoneError,
    out: Path,
    verdict: Verdict,
) -> None:
    try:
        right = expected.read(given.files, given.settings)
        result = expected.cleaned(right)
    except Unjudged as why:
        verdict.outcome = f"unjudged: {why}"
        return
    except Refused as why:
        verdict.outcome = "refused"
        for name, answer in (("inspect", facts), ("compact", report)):
            if not isinstance(answer, HeadstoneError):
                verdict.problems.append(f"{name} accepts what the oracle refuses: {why}")
        return
    if right.damage:
        verdict.outcome = "damaged"
        if not isinstance(facts, HeadstoneError):
            verdict.problems.append(f"inspect accepts what the oracle refuses: {right.damage[0].why}")
        if isinstance(report, HeadstoneError):
            return
        verdict.outcome = "damaged where compact does not look"
        verdict.problems += overlooked(right, result)
    elif stricter := _stricter(facts, report, verdict):
        verdict.outcome = f"stricter: {stricter}"
        return
    else:
        verdict.outcome = "accepted"
    if isinstance(report, HeadstoneError) or verdict.problems:
        return
    if not isinstance(facts, HeadstoneError):
        verdict.problems += fact_differences(right, facts)
    rewritten = {base for group in result.groups for base in group}
    verdict.problems += differences(expected.after_retention(result, right.settings), rewritten, given.files, out)
    if report.dirty_end != result.next_dirty:
        verdict.problems.append(f"next dirty offset is {report.dirty_end}, expected {result.next_dirty}")


# What Headstone refuses and the oracle's readers let pass. Refusing is safe: nothing is written, somebody looks.
STRICTER = {
    "gzip: [0-9]+ bytes after the member": "bytes after a gzip member",
    "lz4: [0-9]+ bytes after the frame": "bytes after an lz4 frame",
    "snappy: unknown stream version": "an unknown xerial version",
    "(gzip|lz4|zstd): ends too early|snappy: corrupt input .empty": "a codec but no payload and no records",
    "offset out of order": "record offsets out of order",
    "impossible record count": "more records than offsets",
    "unknown version ''|'' is not a number": "a blank line at the top of a checkpoint",
    "control batch without a readable control record": "a compressed control batch, or a negative control type",
}


def _stricter(facts: object, report: object, verdict: Verdict) -> str | None:
    """Why both verbs refuse although the oracle accepts; None if neither does."""
    refusals = [answer for answer in (facts, report) if isinstance(answer, HeadstoneError)]
    for refusal in refusals:
        reasons = [reason for pattern, reason in STRICTER.items() if re.search(pattern, str(refusal))]
        if not reasons:
            verdict.problems.append(f"refuses what the oracle accepts: {refusal}")
        if len(refusals) == 2 or refusal is facts:
            return reasons[0] if reasons else "no reason"
    return "by compact only" if refusals else None


def overlooked(right: Reading, result: CleanResult) -> list[str]:
    """Compaction reads no records of segments it carries over, nor of aborted data: there it need not see damage."""
    rewritten = {base for group in result.groups for base in group}
    problems = []
    for damage in right.damage:
        if damage.wrong_crc:
            where = "rewritten" if damage.segment in rewritten else "carried"
            problems.append(f"compact overlooks a wrong CRC in a {where} segment")
        elif damage.segment in rewritten and not right.is_aborted(damage.batch):
            kind = "control" if damage.batch.control else "data"
            problems.append(f"compact accepts a {kind} batch that the oracle refuses: {damage.why}")
    return problems


def differences(wanted: list[Segment], rewritten: set[int], files: Files, out: Path) -> list[str]:
    """Of what a reader sees; compressed sizes are the codec's business, and with them index positions."""
    found = {f"{PARTITION}/{name}": content for name, content in contents(out).items()}
    bases = sorted(int(name[-24:-4]) for name in found if name.endswith(".log"))
    if [segment.base for segment in wanted] != bases:
        return [f"segments {bases}, expected {[segment.base for segment in wanted]}"]
    problems = []
    for right in wanted:
        if right.base in rewritten:
            problems += _segment_differences(right, expected.read_segment(found, right.base, []))
            continue
        for suffix in ("log", "txnindex"):
            name = f"{PARTITION}/{right.base:020d}.{suffix}"
            if found.get(name) != files.get(name):
                problems.append(f"{name} is not as it was")
    return problems


def _segment_differences(right: Segment, mine: Segment) -> list[str]:
    problems = []
    if right.batches != mine.batches:
        pairs = [(a, b) for a, b in zip(right.batches, mine.batches, strict=False) if a != b]
        problems.append(
            f"segment {right.base}: {len(mine.batches)} batches, expected {len(right.batches)}; first that differ: {pairs[:1]}"
        )
    if right.aborted != mine.aborted:
        problems.append(f"segment {right.base}: .txnindex {mine.aborted}, expected {right.aborted}")
    return problems


def fact_differences(right: Reading, facts: PartitionFacts) -> list[str]:
    told = facts.as_json()
    table: dict[bytes, bytes] = {}
    log = view(right.segments, right.producers, right.settings.high_watermark)
    apply(table, read_committed(log)[0])
    wanted = {
        "records": sum(batch.count for batch in right.batches),
        "batches": len(right.batches),
        "header_only_batches": sum(batch.count == 0 for batch in right.batches),
        "log_end": right.segments[-1].next_offset,
        "high_watermark": right.settings.high_watermark,
        "lso": log.lso,
    }
    if not any(batch.base_offset < log.lso <= batch.last_offset for batch in right.batches):
        wanted["keys"] = len(table)  # brokers have no stable offset inside a batch: only a damaged checkpoint does
    return [
        f"inspect says {name} {told[name]}, expected {value}" for name, value in wanted.items() if told[name] != value
    ]
