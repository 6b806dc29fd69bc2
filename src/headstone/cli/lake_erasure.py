"""`headstone lake erase|prove-erased`: a key's records go, for good and by a deadline; and the proof that they have.

Calls and renders; what is left of a key and what comes next is decided in `lake/erasure.py` and `lake/proof.py`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headstone import __version__
from headstone.cli.engines import engine_of
from headstone.cli.lake_opening import name_of_worker, open_named
from headstone.cli.output import BAD, GOOD, Output
from headstone.cli.parsing import DONE, FINDINGS, UNFINISHED
from headstone.cli.stopping import STOPPING, soft_stop
from headstone.errors import UsageError
from headstone.storage.redaction import address

if TYPE_CHECKING:
    from headstone.lake.proof import Proof


def erase(arguments: argparse.Namespace, output: Output) -> int:
    """0: nothing is left; 1: a key is not deleted yet; 3: the rest has to wait, or a signal came."""
    from headstone.lake.erasure import Tools, carry_on_erasures, earliest_end_ms, request_erasure, undeleted_keys
    from headstone.lake.erasures import Erasures
    from headstone.lake.job_plan import JobOptions
    from headstone.lake.keeping import leased
    from headstone.lake.key_search import KeySearch
    from headstone.retention.settings import SOURCE, SOURCE_LAKE

    keys = _keys(arguments)
    lake = open_named(arguments)
    clock = lake.metastore.clock
    now_ms, settings = clock(), lake.metastore.topics().get(arguments.topic, {})
    deadline_ms = now_ms + arguments.deadline_ms
    write = arguments.write_tombstone or settings.get(SOURCE) == SOURCE_LAKE
    end_ms = earliest_end_ms(settings, now_ms=now_ms, grace_ms=arguments.grace_ms)
    worker = name_of_worker("erase")
    with (
        engine_of(arguments, verb="lake", spark_by_default=False) as engine,
        soft_stop(None if output.quiet else STOPPING) as stop,
    ):
        search = KeySearch(lake, engine, progress=not output.quiet)
        digests = request_erasure(
            lake, arguments.topic, keys, deadline_ms=deadline_ms, clock=clock, write=write, search=search
        )
        if end_ms > deadline_ms:
            output.warn(
                f"headstone: the deadline can't be kept: tombstones of {arguments.topic} stay for delete.retention.ms, then "
                f"for the grace, {end_ms - now_ms} ms in all; the deadline is in {arguments.deadline_ms} ms"
            )
        tools = Tools(
            lake=lake, engine=engine, clock=clock, worker=worker, working_on=partial(leased, lake, worker=worker),
            grace_ms=arguments.grace_ms, upload_ms=arguments.upload_ms, tell=output.tell, search=search,
            options=JobOptions(progress=not output.quiet, stop=stop),
        )  # fmt: skip
        carry_on_erasures(tools, [arguments.topic])
        live = [] if stop() else undeleted_keys(search, arguments.topic, digests)
    wanted = frozenset(digests)
    asked = [erasure for erasure in Erasures(lake.metastore).all() if erasure.topic == arguments.topic]
    asked = [erasure for erasure in asked if erasure.key_digest in wanted]
    lake.close()
    left = sum(erasure.is_open for erasure in asked)
    if stop() and left:
        output.warn(
            f"headstone: stopped by a signal, {left:,} keys are left; run the same command again, or let workers go on"
        )
    output.answer(
        lambda: {"topic": arguments.topic, "erasures": [asdict(erasure) for erasure in asked]},
        (erasure_line(asdict(erasure), now_ms, output) for erasure in asked),
    )
    if live:
        return FINDINGS
    return UNFINISHED if left else DONE


def erasure_line(erasure: Mapping[str, Any], now_ms: int, output: Output) -> str:
    """Of `erase` and of `status`."""
    from headstone.lake.erasures import ERASED

    name = f"erasure of {erasure['key_digest']} in {erasure['topic']}"
    if erasure["step"] == ERASED:
        return f"{name}: {output.painted(ERASED, GOOD)} at {erasure['step_ms']}"
    left_ms = erasure["deadline_ms"] - now_ms
    deadline = f"{_span(left_ms)} left" if left_ms >= 0 else output.painted(f"LATE by {_span(-left_ms)}", BAD)
    return f"{name}: {erasure['step']}, {deadline}; waits for {erasure['waits_for'] or 'a worker'}"


def _span(duration_ms: int) -> str:
    """For people: 29.9 days, 3.5 hours, 10 ms."""
    for unit_ms, name in ((86_400_000, "days"), (3_600_000, "hours"), (60_000, "minutes"), (1000, "s")):
        if duration_ms >= unit_ms:
            return f"{duration_ms / unit_ms:.1f} {name}"
    return f"{duration_ms} ms"


def prove(arguments: argparse.Namespace, output: Output) -> int:
    """0: erased; 1: not erased; 3: unproven."""
    from headstone.lake.erasures import Erasures
    from headstone.lake.proof import ERASED, FOUND, prove_erased, sealed
    from headstone.pipeline.progress import ProgressLine

    lake = open_named(arguments)
    asked = {erasure.topic for erasure in Erasures(lake.metastore).all()}
    if arguments.topic not in lake.metastore.topics().keys() | asked:  # one that was dropped may still be erased
        raise UsageError(f"the lake has no topic {arguments.topic}")
    key = key_of_hex("--key-hex", arguments.key_hex) if arguments.key is None else str(arguments.key).encode()
    with ProgressLine(enabled=not output.quiet) as progress:
        proof = prove_erased(lake, arguments.topic, key, anywhere=arguments.anywhere, board=progress.board)
    about = {"lake": lake.metastore.lake_id, "objects_url": address(lake.metastore.location), "version": __version__}
    lake.close()
    output.answer(lambda: sealed(about | _proof_document(proof)), _proof_lines(proof, output))
    return {ERASED: DONE, FOUND: FINDINGS}.get(proof.verdict, UNFINISHED)


def _proof_document(proof: Proof) -> dict[str, object]:
    return {
        "topic": proof.topic, "key_hex": proof.key.hex(), "key_digest": proof.key_digest, "anywhere": proof.anywhere,
        "verdict": proof.verdict, "started_ms": proof.started_ms, "finished_ms": proof.finished_ms,
        "partitions": [
            {
                "partition": str(name), "start_offset": partition.start_offset, "next_offset": partition.next_offset,
                "compaction_epoch": partition.compaction_epoch, "extents": len(partition.extents),
            }
            for name, partition in sorted(proof.partitions.items())
        ],
        "bytes": sum(searched.bytes for searched in proof.searched),
        "found": [asdict(sighting) for sighting in proof.sightings],
        "mentions_count": proof.mentions_count, "mentions": [asdict(mention) for mention in proof.mentions],
        "objects": [asdict(searched) for searched in proof.searched],
        "journal": {"objects": proof.journal_objects, "digests": proof.journal_digests},
        "unread": [asdict(unread) for unread in proof.unread],
    }  # fmt: skip


def _proof_lines(proof: Proof, output: Output) -> Iterator[str]:
    from headstone.lake.proof import ERASED

    for sighting in proof.sightings:
        what = "tombstone" if sighting.tombstone else "value"
        where = f"{proof.topic}-{sighting.partition} {sighting.offset}"
        yield f"{what} at {where}, {sighting.state}, in {sighting.object_id} at {sighting.position}"
    for mention in proof.mentions:
        where = "" if mention.offset is None else f", compressed in the record of offset {mention.offset}"
        yield f"the key's bytes in {mention.object_id} at {mention.position}{where}"
    if proof.mentions_count > len(proof.mentions):
        yield f"and {proof.mentions_count - len(proof.mentions):,} times more"
    for unread in proof.unread:
        yield f"not read: {unread.path}: {unread.why}"
    if proof.journal_digests:
        yield f"{proof.journal_digests} lines of the journal remember the key's erasure, by its digest: not the key, no value"
    verdict = output.painted(proof.verdict, GOOD if proof.verdict == ERASED else BAD)
    total = sum(searched.bytes for searched in proof.searched)
    yield f"{verdict}: {len(proof.searched)} objects, {total:,} bytes were read"


def _keys(arguments: argparse.Namespace) -> list[bytes]:
    keys = [text.encode() for text in arguments.key] + [key_of_hex("--key-hex", text) for text in arguments.key_hex]
    if arguments.keys_file is not None:
        keys += list(_keys_in(arguments.keys_file))
    if not keys:
        raise UsageError("name the keys with --key, --key-hex or --keys-file")
    return keys


def _keys_in(path: Path) -> Iterator[bytes]:
    """One per line, as text or, as other verbs show bytes that are none, as {"hex": "..."}."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--keys-file {path}: {error}") from error
    for number, line in enumerate(lines, start=1):
        if line.startswith('{"hex"'):
            yield key_of_hex(f"--keys-file {path}, line {number}:", str(_hex_in(path, number, line)))
        elif line:
            yield line.encode()


def _hex_in(path: Path, number: int, line: str) -> object:
    try:
        return json.loads(line)["hex"]
    except (ValueError, KeyError) as error:
        raise UsageError(f'--keys-file {path}, line {number}: expected {{"hex": "..."}}') from error


def key_of_hex(where: str, text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError as error:
        raise UsageError(f"{where} {text}: not hexadecimal") from error
