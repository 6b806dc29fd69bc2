"""Owns the acceptance case files: their grammar, the cases as data, what is observed of a log, and the oracle's runner.

A runner over another cleaner takes `parse_cases`, feeds each step's notation to a History, and compares
`observe(...)` of the segments it finds with the step's expectations through `mismatches`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from tests.oracle.batches import Batch, Record
from tests.oracle.cleaner import CleanResult, Pass, clean
from tests.oracle.notation import History
from tests.oracle.segments import Segment

DELETE_RETENTION_MS = 86_400_000
MAX = 2**63 - 1
BIG = MAX - DELETE_RETENTION_MS - 1
WORDS = {"MAX": MAX, "BIG": BIG, "dr": DELETE_RETENTION_MS}

LISTS = ("recs", "offsets", "lasts", "empty", "segments", "tombstones", "plain")
NUMBERS = ("next_dirty", "invalid")
EXPECTATIONS = (*LISTS, *NUMBERS, "keys", "txnindex", "horizons")

OPTIONS = {
    "dirty": "dirty_start",
    "now": "now_ms",
    "dr": "delete_retention_ms",
    "keys_max": "keys_max",
    "segment_bytes": "segment_bytes",
    "mtro": "mtro",
    "mxro": "mxro",
    "plain_below": "plain_below",
    "expire": "producer_expiration_ms",
    "hw": "high_watermark",
    "lag": "lag_ms",
}

Value = tuple[str, ...] | tuple[int, ...] | tuple[tuple[int, ...], ...]


class BadCase(ValueError):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Append:
    """`log` and `append` lines."""

    line: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    line: int
    name: str
    value: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Clean:
    """`settings.dirty_start` None = where the previous pass ended, at first 0."""

    line: int
    settings: Pass
    expectations: tuple[Expectation, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    name: str
    title: str
    line: int
    steps: tuple[Append | Clean, ...]


def parse_cases(text: str) -> list[Case]:
    cases: list[Case] = []
    for number, raw in enumerate(text.splitlines(), 1):
        words = re.sub(r"(^|\s)#.*", "", raw).split()
        if not words:
            continue
        if words[0] == "case":
            cases.append(Case(name=words[1], title=" ".join(words[2:]), line=number, steps=()))
        elif not cases:
            raise BadCase(f"line {number}: no case yet")
        else:
            cases[-1] = replace(cases[-1], steps=_add(cases[-1].steps, number, words))
    names = [case.name for case in cases]
    if len(set(names)) != len(names):
        raise BadCase(f"a case name is used twice among {names}")
    return cases


def _add(steps: tuple[Append | Clean, ...], line: int, words: list[str]) -> tuple[Append | Clean, ...]:
    verb, rest = words[0], words[1:]
    if verb in ("log", "append"):
        if (verb == "log") != (not steps):
            raise BadCase(f"line {line}: a case starts with one log line, append follows")
        return (*steps, Append(line=line, text=" ".join(rest)))
    if verb == "clean":
        return (*steps, Clean(line=line, settings=_settings(line, rest)))
    if verb not in EXPECTATIONS:
        raise BadCase(f"line {line}: unknown word {verb}")
    last = steps[-1] if steps else None
    if not isinstance(last, Clean):
        raise BadCase(f"line {line}: {verb} follows no clean")
    expectation = Expectation(line=line, name=verb, value=_value(verb, rest))
    return (*steps[:-1], replace(last, expectations=(*last.expectations, expectation)))


def _settings(line: int, words: list[str]) -> Pass:
    fields: dict[str, int] = {}
    rules = "kafka"
    for word in words:
        name, _, value = word.partition("=")
        if name == "rules" and value in ("kafka", "coordinated"):
            rules = value
        elif name in OPTIONS:
            fields[OPTIONS[name]] = parse_number(value)
        else:
            raise BadCase(f"line {line}: unknown option {word}")
    if "now_ms" not in fields:
        raise BadCase(f"line {line}: clean needs now=")
    return Pass(rules=rules, **fields)


def _value(name: str, words: list[str]) -> Value:
    if words == ["none"]:
        return ()
    if name == "keys":
        return tuple(words)
    if name == "txnindex":
        return tuple(tuple(parse_number(part) for part in word.split(",")) for word in words)
    if name == "horizons":
        return tuple(tuple(parse_number(part) for part in word.split(":")) for word in words)
    return tuple(parse_number(word) for word in words)


def parse_number(text: str) -> int:
    """12, MAX, BIG, BIG+dr+1, MAX-5."""
    parts = re.findall(r"[+-]?\w+", text)
    if not parts or "".join(parts) != text:
        raise BadCase(f"no number: {text}")
    total = 0
    for part in parts:
        word = part.lstrip("+-")
        total += (-1 if part[0] == "-" else 1) * (WORDS[word] if word in WORDS else int(word))
    return total


def observe(segments: list[Segment], *, next_dirty: int, invalid: int) -> dict[str, Value]:
    """Everything a case may expect of a log, active segment included, by the name of its line."""
    batches = [batch for segment in segments for batch in segment.batches]
    records = [(batch, record) for batch in batches for record in batch.records]
    data = [record for batch, record in records if not batch.control]
    return {
        "keys": tuple((record.key or b"").decode() for record in data if _is_valued(record)),
        "recs": tuple(record.offset for _, record in records if _is_valued(record)),
        "offsets": tuple(record.offset for _, record in records),
        "tombstones": tuple(record.offset for record in data if record.value is None),
        "lasts": tuple(batch.last_offset for batch in batches),
        "empty": tuple(batch.last_offset for batch in batches if batch.count == 0),
        "plain": tuple(batch.last_offset for batch in batches if _is_plain(batch)),
        "horizons": tuple((batch.last_offset, batch.horizon_ms) for batch in batches if batch.horizon_ms is not None),
        "segments": tuple(segment.base for segment in segments),
        "txnindex": tuple(
            (entry.producer_id, entry.first_offset, entry.last_offset, entry.lso)
            for segment in segments
            for entry in segment.aborted
        ),
        "next_dirty": (next_dirty,),
        "invalid": (invalid,),
    }


def _is_valued(record: Record) -> bool:
    return record.key is not None and record.value is not None


def _is_plain(batch: Batch) -> bool:
    return not batch.control and batch.producer_id >= 0 and not batch.transactional


def mismatches(step: Clean, observed: dict[str, Value]) -> list[str]:
    return [
        f"line {expected.line}: {expected.name} is {observed[expected.name]}, expected {expected.value}"
        for expected in step.expectations
        if observed[expected.name] != expected.value
    ]


def run_case(case: Case) -> list[CleanResult]:
    """Runs a case through the oracle; raises AssertionError at the first pass that differs."""
    history = History()
    next_dirty = 0
    results = []
    for step in case.steps:
        if isinstance(step, Append):
            history.append(step.text)
            continue
        settings = step.settings
        if settings.dirty_start is None:
            settings = replace(settings, dirty_start=next_dirty)
        result = clean(history.segments, history.producers, settings)
        history.install(result.segments)
        next_dirty = result.next_dirty
        results.append(result)
        wrong = mismatches(step, observe(result.segments, next_dirty=next_dirty, invalid=result.invalid))
        assert not wrong, f"case {case.name}, clean at line {step.line}:\n" + "\n".join(wrong)
    return results
