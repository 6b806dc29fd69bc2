"""`headstone synth`: writes sample log directories, deterministic by seed.

Parses and renders; `sim/synth.py` writes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from headstone import units
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
    topic_name,
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
    add("--topic", type=topic_name, default=sample.topic, help="topic name")
    add("--partitions", type=partition_count, default=sample.partitions, metavar="N", help="number of partitions")
    add("--records", type=record_count, default=sample.records, metavar="N", help="records per partition")
    add(
        "--keys",
        type=key_count,
        default=sample.keys,
        metavar="N",
        help="number of distinct keys; 0: every key is different",
    )
    add("--value-bytes-min", type=value_bytes, default=sample.value_bytes_min, metavar="N", help="smallest value size")
    add("--value-bytes-max", type=value_bytes, default=sample.value_bytes_max, metavar="N", help="largest value size")
    add("--batch-bytes", type=batch_bytes, default=sample.batch_bytes, metavar="N", help="batch size, uncompressed")
    add("--segment-bytes", type=segment_bytes, default=sample.segment_bytes, metavar="N", help="maximum segment size")
    add("--codec", choices=codecs.NAMES, default=codecs.NAMES[sample.codec], help="compression of the batches")
    add(
        "--tombstones",
        type=ratio,
        default=sample.tombstones,
        metavar="SHARE",
        help="share of records that are tombstones",
    )
    add("--headers", type=ratio, default=sample.headers, metavar="SHARE", help="share of records with headers")
    add(
        "--transactions", type=ratio, default=sample.transactions, metavar="SHARE",
        help="share of batches in transactions",
    )  # fmt: skip
    add("--aborts", type=ratio, default=sample.aborts, metavar="SHARE", help="share of transactions that abort")
    add("--producers", type=producer_count, default=sample.producers, metavar="N", help="number of producers")
    add("--replicas", type=copy_count, default=sample.replicas, metavar="N", help="identical copies in DIR/replica-N")
    add("--seed", type=seed_number, default=sample.seed, metavar="N", help="the same seed gives the same bytes")
    add(
        "--start-ms", type=moment_ms, default=sample.start_ms, metavar="TIME",
        help="timestamp of the first record",
    )  # fmt: skip


def run(arguments: argparse.Namespace, output: Output) -> int:
    from headstone.log.directory import refuse_broker_directory
    from headstone.pipeline.progress import RECORDS, ProgressLine, meter_on
    from headstone.sim.synth import write_sample

    directory = arguments.directory
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file; name a new directory")
    if directory.exists() and any(directory.iterdir()):
        raise UsageError(f"{directory} is not empty; name a new directory")
    refuse_broker_directory(directory, instead="name a new directory elsewhere")
    if arguments.value_bytes_min > arguments.value_bytes_max:
        raise UsageError("--value-bytes-min is above --value-bytes-max")
    names = set(SampleSettings.__slots__) & set(vars(arguments))
    settings = SampleSettings(
        **{name: getattr(arguments, name) for name in names if name != "codec"},
        codec=codecs.NAMES.index(arguments.codec),
    )
    with ProgressLine(enabled=not output.quiet, unit=RECORDS) as line:
        line.expect(settings.partitions * settings.records)
        roots = write_sample(directory, settings, meter_on(line.board))
    written = sum(path.stat().st_size for root in roots for path in root.rglob("*.log"))
    output.answer(
        lambda: {"log_dirs": [str(root) for root in roots], "bytes": written, "seed": settings.seed},
        [f"wrote {units.size(written)} to {', '.join(map(str, roots))} (seed {settings.seed})"],
    )
    return DONE
