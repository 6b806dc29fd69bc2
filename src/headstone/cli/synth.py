"""`headstone synth`: writes sample log directories, deterministic by seed.

Parses and renders; `sim/synth.py` writes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from headstone.cli.options import (
    MOMENT,
    batch_bytes,
    copy_count,
    key_count,
    moment_ms,
    partition_count,
    producer_count,
    ratio,
    record_count,
    seed_number,
    segment_bytes,
    value_bytes,
)
from headstone.cli.output import Output
from headstone.cli.parsing import DONE
from headstone.errors import UsageError
from headstone.log import codecs
from headstone.sim.samples import SampleSettings

EXAMPLES = (
    "headstone synth /tmp/sample --records 100000 --transactions 0.3",
    "headstone synth /tmp/sample --replicas 3 --codec zstd --seed 7",
)
EXIT_CODES = {DONE: "written"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sample = SampleSettings()
    parser.add_argument("directory", type=Path, metavar="DIR", help="a directory that does not exist or is empty")
    add = parser.add_argument
    add("--topic", default=sample.topic, help="its name")
    add("--partitions", type=partition_count, default=sample.partitions, metavar="N", help="how many")
    add("--records", type=record_count, default=sample.records, metavar="N", help="per partition")
    add("--keys", type=key_count, default=sample.keys, metavar="N", help="distinct keys to draw from; 0: all different")
    add("--value-bytes-min", type=value_bytes, default=sample.value_bytes_min, metavar="N", help="the smallest value")
    add("--value-bytes-max", type=value_bytes, default=sample.value_bytes_max, metavar="N", help="the largest value")
    add("--batch-bytes", type=batch_bytes, default=sample.batch_bytes, metavar="N", help="of a batch, uncompressed")
    add("--segment-bytes", type=segment_bytes, default=sample.segment_bytes, metavar="N", help="of a segment, at most")
    add("--codec", choices=codecs.NAMES, default=codecs.NAMES[sample.codec], help="of every batch")
    add("--tombstones", type=ratio, default=sample.tombstones, metavar="SHARE", help="share of records")
    add("--headers", type=ratio, default=sample.headers, metavar="SHARE", help="share of records with headers")
    add(
        "--transactions", type=ratio, default=sample.transactions, metavar="SHARE",
        help="share of batches in transactions",
    )  # fmt: skip
    add("--aborts", type=ratio, default=sample.aborts, metavar="SHARE", help="share of transactions that abort")
    add("--producers", type=producer_count, default=sample.producers, metavar="N", help="how many write")
    add("--replicas", type=copy_count, default=sample.replicas, metavar="N", help="identical copies in DIR/replica-N")
    add("--seed", type=seed_number, default=sample.seed, metavar="N", help="the same seed gives the same bytes")
    add(
        "--start-ms", type=moment_ms, default=sample.start_ms, metavar="TIME",
        help=f"timestamp of the first record, {MOMENT}",
    )  # fmt: skip


def run(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.sim.synth import write_sample

    directory = arguments.directory
    if directory.exists() and any(directory.iterdir()):
        raise UsageError(f"{directory} is not empty; name a new directory")
    if arguments.value_bytes_min > arguments.value_bytes_max:
        raise UsageError("--value-bytes-min is above --value-bytes-max")
    names = set(SampleSettings.__slots__) & set(vars(arguments))
    settings = SampleSettings(
        **{name: getattr(arguments, name) for name in names if name != "codec"},
        codec=codecs.NAMES.index(arguments.codec),
    )
    roots = write_sample(directory, settings)
    written = sum(path.stat().st_size for root in roots for path in root.rglob("*.log"))
    output.answer(
        lambda: {"log_dirs": [str(root) for root in roots], "bytes": written, "seed": settings.seed},
        [f"wrote {written / 1e6:,.1f} MB to {', '.join(map(str, roots))} (seed {settings.seed})"],
    )
    return DONE
