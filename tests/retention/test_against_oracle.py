"""Random histories through `compact`, compared pass by pass with the oracle: batches, bytes, indexes, reasons.

A failure names its seed; the test's id replays it.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from headstone.spark.report import PartitionReport
from tests.oracle.batches import Batch, encode, to_bytes
from tests.oracle.cleaner import CleanResult, Pass, clean
from tests.oracle.files import read_partition
from tests.oracle.segments import Segment, make_segment
from tests.retention.stories import Cleaning, Files, Teller, quick_directory, story

SEEDS = range(60)
WAYS = [("whole", False), ("whole", True), ("shuffle", False), ("shuffle", True)]


def expected_bytes(batch: Batch) -> bytes:
    """Of a rebuilt compressed batch only the content counts, so it is compressed by the oracle's writer."""
    return to_bytes(batch)


def comparable(batch: Batch) -> tuple[Batch, bytes]:
    return batch, encode(batch) if batch.raw is None or batch.codec != "none" else batch.raw
