"""Kafka's own dump of log files, and the output of `headstone inspect --records` on the same files in the dump's format.

Comparing the two line by line compares every field that the dump prints.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from headstone.brokers.distribution import Distribution

FILE = "Dumping "
PRINTED = ("baseOffset: ", "| offset: ")


def dump(distribution: Distribution, files: Sequence[Path], work: Path) -> dict[str, list[str]]:
    """The batch and record lines of every file."""
    names = ",".join(map(str, files))
    printed = distribution.tool("dump-log", "--files", names, "--print-data-log", config=work)
    by_file: dict[str, list[str]] = {}
    for line in printed.splitlines():
        if line.startswith(FILE):
            lines = by_file.setdefault(line.removeprefix(FILE), [])
        elif line.startswith(PRINTED):
            lines.append(line)
    return by_file


def as_dumped(batch: Mapping[str, Any]) -> list[str]:
    """One entry of inspect's `batch_list`, as the dump would print it."""
    horizon = batch["delete_horizon_ms"]
    stamp = "OptionalLong.empty" if horizon is None else f"OptionalLong[{horizon}]"
    lines = [
        f"baseOffset: {batch['base_offset']} lastOffset: {batch['last_offset']} count: {batch['count']} "
        f"baseSequence: {batch['base_sequence']} lastSequence: {batch['last_sequence']} "
        f"producerId: {batch['producer_id']} producerEpoch: {batch['producer_epoch']} "
        f"partitionLeaderEpoch: {batch['leader_epoch']} isTransactional: {_truth(batch['transactional'])} "
        f"isControl: {_truth(batch['control'] is not None)} deleteHorizonMs: {stamp} position: {batch['position']} "
        f"{batch['timestamp_type']}: {batch['max_timestamp_ms']} size: {batch['size']} magic: 2 "
        f"compresscodec: {batch['codec']} crc: {batch['crc']} isvalid: true"
    ]
    return lines + [_record(batch, record) for record in batch["records"]]


def _record(batch: Mapping[str, Any], record: Mapping[str, Any]) -> str:
    key, value = _bytes(record["key"]), _bytes(record["value"])
    headers = ",".join(header["key"] for header in record["headers"])
    line = (
        f"| offset: {record['offset']} {batch['timestamp_type']}: {record['timestamp_ms']} keySize: {_size(key)} "
        f"valueSize: {_size(value)} sequence: {record['sequence']} headerKeys: [{headers}]"
    )
    if batch["control"] is not None:
        return f"{line} endTxnMarker: {batch['control']} coordinatorEpoch: {batch['coordinator_epoch']}"
    if key is not None:
        line += f" key: {key.decode(errors='replace')}"
    if value is not None:
        line += f" payload: {value.decode(errors='replace')}"
    return line


def _bytes(shown: str | Mapping[str, str] | None) -> bytes | None:
    """Decodes how inspect prints bytes."""
    if shown is None:
        return None
    return shown.encode() if isinstance(shown, str) else bytes.fromhex(shown["hex"])


def _size(content: bytes | None) -> int:
    return -1 if content is None else len(content)


def _truth(value: bool) -> str:
    return "true" if value else "false"
