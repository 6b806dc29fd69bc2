"""The arguments of `headstone lake erase|prove-erased`, including the grace periods that other actions share.

Arguments only: `lake_erasure.py` is imported when one of the actions is used.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from headstone.cli.engines import IN_PROCESS, add_engine_arguments
from headstone.cli.options import deadline_ms, duration_ms, interval_ms
from headstone.cli.parsing import FINDINGS, UNFINISHED
from headstone.lake.defaults import ERASURE_DEADLINE_MS, GRACE_MS, UPLOAD_MS

if TYPE_CHECKING:
    from headstone.cli.lake import LakeActions


def add_erasure_arguments(actions: LakeActions) -> None:
    _add_proof(actions)
    _add_erase(actions)


def _add_proof(actions: LakeActions) -> None:
    proof = actions.add(
        "prove-erased", "search every object of the store for values of a key, or of a dropped topic",
        "lake_erasure.prove", "/data/lake users --key alice", "/data/lake droppedtopic",
        exit_codes={
            0: "no object holds a value of the key, or of the dropped topic",
            FINDINGS: "values were found; or the key was never in this lake",
            UNFINISHED: "some objects could not be read, so nothing is proven",
        },
    )  # fmt: skip
    proof.add_argument("topic", metavar="TOPIC", help="topic of the key")
    which = proof.add_mutually_exclusive_group()
    which.add_argument("--key", help="key as text (default: all keys of a dropped topic)")
    which.add_argument("--key-hex", metavar="HEX", help="key as hexadecimal bytes (default: see --key)")
    proof.add_argument(
        "--anywhere", action="store_true",
        help="also search for the key itself: in tombstones, other records and other topics (default: only its values)",
    )  # fmt: skip


def _add_erase(actions: LakeActions) -> None:
    erase = actions.add(
        "erase", "erase every trace of keys by a deadline; run it again, or let workers continue", "lake_erasure.erase",
        "/data/lake users --key alice --deadline 30d", "/data/lake users --keys-file leavers.txt --write-tombstone",
        exit_codes={
            0: "no trace of the keys is left",
            FINDINGS: "a key is not deleted yet: delete it in Kafka, ingest, run again; or it was never in this lake",
            UNFINISHED: "not finished: the remaining steps are waiting",
        },
    )  # fmt: skip
    erase.add_argument("topic", metavar="TOPIC", help="topic of the keys")
    erase.add_argument("--key", action="append", default=[], help="key as text; may be repeated")
    erase.add_argument(
        "--key-hex", action="append", default=[], metavar="HEX", help="key as hexadecimal bytes; may be repeated"
    )
    erase.add_argument(
        "--keys-file",
        type=Path,
        metavar="FILE",
        help='file of keys, one per line, as text or as {"hex": "..."} (default: none)',
    )
    erase.add_argument(
        "--deadline", dest="deadline_ms", type=deadline_ms, default=ERASURE_DEADLINE_MS, metavar="DURATION",
        help="time until no trace may be left; shown by `lake status`",
    )  # fmt: skip
    erase.add_argument(
        "--write-tombstone", action="store_true",
        help="write missing tombstones into the lake; from then on the lake owns the topic and ingest refuses it "
        "(default: only if that is the case already)",
    )  # fmt: skip
    add_grace_arguments(erase)
    add_engine_arguments(erase, auto=IN_PROCESS)


def add_grace_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--grace-ms",
        type=duration_ms,
        default=GRACE_MS,
        metavar="DURATION",
        help="how long replaced objects are kept for readers",
    )
    parser.add_argument(
        "--upload-ms",
        type=interval_ms,
        default=UPLOAD_MS,
        metavar="DURATION",
        help="longest time that an upload may take",
    )
