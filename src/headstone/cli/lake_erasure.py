"""`headstone lake erase|prove-erased`: erases a key's records for good and by a deadline, and proves that they are gone.

Calls and renders; `lake/jobs/erasure_run.py` and `lake/jobs/proof.py` decide what is left of a key and what comes next.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from headstone import __version__, units
from headstone.api.stopping import STOPPING, soft_stop
from headstone.cli.engines import engine_of
from headstone.cli.lake_opening import open_named
from headstone.cli.output import BAD, GOOD, Output
from headstone.cli.parsing import DONE, FINDINGS, UNFINISHED
from headstone.errors import UsageError
from headstone.log.listed_keys import key_of_hex, keys_in

if TYPE_CHECKING:
    from headstone.lake.jobs.proof import Proof
    from headstone.lake.metastore.erasures import Erasure


def erase(arguments: argparse.Namespace, output: Output) -> int:
    """Returns 0: nothing is left; 1: a key is not deleted yet, was never seen, or came in meanwhile; 3: it waits, or a signal
    came."""
    from headstone.lake.jobs.erasure_run import ErasureRequest, is_dropped, run_erasure

    with open_named(arguments) as lake:
        request = ErasureRequest(
            topic=arguments.topic, keys=_keys(arguments, dropped=is_dropped(lake, arguments.topic)),
            deadline_ms=arguments.deadline_ms, write_tombstone=arguments.write_tombstone, grace_ms=arguments.grace_ms,
            upload_ms=arguments.upload_ms,
        )  # fmt: skip
        with (
            engine_of(arguments, verb="lake", spark_by_default=False) as engine,
            soft_stop(None if output.quiet else STOPPING) as stop,
        ):
            run = run_erasure(
                lake, request, engine, stop=stop, tell=output.tell, warn=output.warn, progress=not output.quiet
            )  # fmt: skip
    if run.stopped:
        output.warn(
            f"headstone: stopped by a signal, {units.count(run.left, 'key')} left; run the same command again, or let workers "
            "go on"
        )
    output.answer(
        lambda: {"topic": arguments.topic, "erasures": [asdict(erasure) for erasure in run.erasures]},
        (erasure_line(erasure, run.now_ms, output) for erasure in run.erasures),
    )
    if run.needs_somebody:
        return FINDINGS
    return UNFINISHED if run.left else DONE


def erasure_line(erasure: Erasure, now_ms: int, output: Output) -> str:
    """For `erase` and `status`."""
    from headstone.lake.metastore.erasure_steps import CAME_AGAIN, CAME_LATER, ERASED, NEVER_SEEN

    name = f"erasure of {'all' if erasure.is_whole else erasure.key_digest} in {erasure.topic}" + (
        ", dropped" if erasure.is_whole else ""
    )
    step_time = units.exact_moment(erasure.step_ms)
    if erasure.step == ERASED:
        return f"{name}: {output.painted(ERASED, GOOD)} at {step_time}"
    if erasure.step == NEVER_SEEN:
        return f"{name}: {output.painted(NEVER_SEEN, BAD)}: no record of this key was found, is it spelt right?"
    if erasure.step in (CAME_AGAIN, CAME_LATER):
        before = "it was erased" if erasure.step == CAME_AGAIN else "no record of this key had been found"
        return f"{name}: {output.painted(erasure.step, BAD)} at {step_time}, after {before}; ask again to erase it"
    left_ms = erasure.deadline_ms - now_ms
    deadline = f"{units.exact_duration(left_ms)} left"
    if left_ms < 0:
        deadline = output.painted(f"LATE by {units.exact_duration(-left_ms)}", BAD)
    unseen = "" if erasure.seen else "; no record of this key was found so far"
    return f"{name}: {erasure.step}, {deadline}; waits for {erasure.waits_for or 'a worker'}{unseen}"


def prove(arguments: argparse.Namespace, output: Output) -> int:
    """Returns 0: erased; 1: not erased, or never seen; 3: unproven."""
    from headstone.lake.jobs.erasure_run import expect_provable
    from headstone.lake.jobs.proof import ERASED, FOUND, NEVER_SEEN, proof_document, prove_erased
    from headstone.pipeline.progress import ProgressLine

    topic, key = arguments.topic, None if arguments.key is None else str(arguments.key).encode()
    if arguments.key_hex is not None:
        key = key_of_hex("--key-hex", arguments.key_hex)
    with open_named(arguments) as lake:
        expect_provable(lake, topic, key, anywhere=arguments.anywhere)
        with ProgressLine(enabled=not output.quiet) as progress:
            proof = prove_erased(lake, topic, key, anywhere=arguments.anywhere, board=progress.board)
        document = proof_document(lake, proof, version=__version__)
    output.answer(lambda: document, _proof_lines(proof, output))
    return {ERASED: DONE, FOUND: FINDINGS, NEVER_SEEN: FINDINGS}.get(proof.verdict, UNFINISHED)


def _proof_lines(proof: Proof, output: Output) -> Iterator[str]:
    from headstone.lake.jobs.proof import ERASED, NEVER_SEEN

    for sighting in proof.sightings:
        what = "tombstone" if sighting.tombstone else "value"
        where = f"{proof.topic}-{sighting.partition} {sighting.offset}"
        yield f"{what} at {where}, {sighting.state}, in {sighting.object_id} at {sighting.position}"
    for remnant in proof.remnants:
        where = f"{proof.topic}-{remnant.partition}, which was dropped"
        place = f"{remnant.state}, in {remnant.object_id} at {remnant.position}"
        yield f"{units.count(remnant.records, 'record')} of {where}, {place}"
    for mention in proof.mentions:
        where = "" if mention.offset is None else f", compressed in the record of offset {mention.offset}"
        yield f"the key's bytes in {mention.object_id} at {mention.position}{where}"
    if proof.mentions_count > len(proof.mentions):
        yield f"and {units.count(proof.mentions_count - len(proof.mentions), 'time')} more"
    for unread in proof.unread:
        yield f"not read: {unread.path}: {unread.why}"
    if proof.journal_digests:
        what = (
            "the key's erasure, by its digest; not the key" if proof.key is not None else "that it was dropped; no key"
        )
        yield f"{units.count(proof.journal_digests, 'line')} of the journal: {what}, no value"
    if proof.verdict == NEVER_SEEN:
        yield (
            f"no record of this key was found in {proof.topic}, and no erasure of it is recorded: check the spelling of the "
            "key. Removals by compaction alone are not recorded. For a dropped topic, leave out the key"
        )
    if proof.is_made_again:
        yield (
            f"{proof.topic} was made again since and is in the lake: that topic's records are not meant; ask for its keys with "
            "--key"
        )
    verdict = output.painted(proof.verdict, GOOD if proof.verdict == ERASED else BAD)
    total = sum(searched.bytes for searched in proof.searched)
    yield f"{verdict}: {units.count(len(proof.searched), 'object')}, {units.count(total, 'byte')} read"


def _keys(arguments: argparse.Namespace, *, dropped: bool) -> tuple[bytes, ...] | None:
    """None: all keys of a dropped topic."""
    given = {
        "--key": arguments.key, "--key-hex": arguments.key_hex, "--keys-file": arguments.keys_file,
        "--write-tombstone": arguments.write_tombstone,
    }  # fmt: skip
    if dropped:
        if names := [name for name, value in given.items() if value]:
            raise UsageError(
                f"{arguments.topic} was dropped: all of it is erased; leave out the keys (here {', '.join(names)})"
            )
        return None
    keys = [text.encode() for text in arguments.key] + [key_of_hex("--key-hex", text) for text in arguments.key_hex]
    if arguments.keys_file is not None:
        keys += keys_in("--keys-file", arguments.keys_file)
    if not keys:
        raise UsageError("name the keys with --key, --key-hex or --keys-file")
    return tuple(keys)
