"""What a sample log directory is made of: sizes, codecs, transactions, tombstones, replicas.

Settings only, so that a command line can use their defaults; `synth.py` writes the sample.
"""

from __future__ import annotations

from dataclasses import dataclass

from headstone.log import codecs


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleSettings:
    """`transactions`, `aborts`, `tombstones` and `headers` are shares from 0 to 1. `keys` is the number of distinct keys to
    draw from; with 0 each record gets a key of its own."""

    topic: str = "sample"
    partitions: int = 1
    records: int = 10_000
    keys: int = 5_000
    value_bytes_min: int = 60
    value_bytes_max: int = 320
    batch_bytes: int = 16_384
    segment_bytes: int = 1 << 20
    codec: int = codecs.NONE
    tombstones: float = 0.02
    headers: float = 0.1
    transactions: float = 0.0
    aborts: float = 0.2
    producers: int = 4
    txn_batches: int = 4
    replicas: int = 1
    seed: int = 1
    start_ms: int = 1_700_000_000_000
    step_ms: int = 1
