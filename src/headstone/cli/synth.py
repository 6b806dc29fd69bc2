"""`headstone synth`: writes sample log directories, deterministic by seed.

Exit 0 written; 2 wrong usage or the directory exists.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from headstone.cli.options import (
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
from headstone.errors import UsageError
from headstone.log import codecs
from headstone.sim.samples import SampleSettings


def add_arguments(parser: argparse.ArgumentParser) -> None:
    sample = SampleSettings()
    parser.add_argument("directory", type=Path, metavar="DIR", help="a directory that does not exist or is empty")
    parser.add_argument("--topic", default=sample.topic)
    parser.add_argument("--partitions", type=partition_count, default=sample.partitions)
    parser.add_argument(
        "--records", type=record_count, default=sample.records, help="a partition (default %(default)s)"
    )
    parser.add_argument(
        "--keys", type=key_count, default=sample.keys, help="distinct keys to draw from; 0: all different"
    )
    parser.add_argument("--value-bytes-min", type=value_bytes, default=sample.value_bytes_min)
    parser.add_argument("--value-bytes-max", type=value_bytes, default=sample.value_bytes_max)
    parser.add_argument("--batch-bytes", type=batch_bytes, default=sample.batch_bytes)
    parser.add_argument("--segment-bytes", type=segment_bytes, default=sample.segment_bytes)
    parser.add_argument("--codec", choices=codecs.NAMES, default=codecs.NAMES[sample.codec])
    parser.add_argument("--tombstones", type=ratio, default=sample.tombstones, help="share of records")
    parser.add_argument("--headers", type=ratio, default=sample.headers, help="share of records with headers")
    parser.add_argument(
        "--transactions", type=ratio, default=sample.transactions, help="share of batches in transactions"
    )
    parser.add_argument("--aborts", type=ratio, default=sample.aborts, help="share of transactions that abort")
    parser.add_argument("--producers", type=producer_count, default=sample.producers)
    parser.add_argument(
        "--replicas", type=copy_count, default=sample.replicas, help="identical copies in DIR/replica-N"
    )
    parser.add_argument("--seed", type=seed_number, default=sample.seed)
    parser.add_argument("--start-ms", type=moment_ms, default=sample.start_ms, help="timestamp of the first record")


def run(arguments: argparse.Namespace) -> int:
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
    if arguments.output == "json":
        print(json.dumps({"log_dirs": [str(root) for root in roots], "bytes": written, "seed": settings.seed}))
    else:
        print(f"wrote {written / 1e6:,.1f} MB to {', '.join(map(str, roots))} (seed {settings.seed})")
    return 0
