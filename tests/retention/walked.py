"""The oracle's batches as the table of headers that Headstone's walk makes of their bytes."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from headstone.log import kernels
from headstone.log.layout import BATCH
from headstone.log.reading import PAYLOAD_BYTES_MAX, Batches
from tests.logs import history_of
from tests.oracle.batches import Batch, to_bytes
from tests.retention.stories import Teller, story


def walked(batches: Iterable[Batch]) -> Batches:
    data = np.frombuffer(b"".join(to_bytes(batch) for batch in batches), dtype=np.uint8)
    table = np.zeros(max(1, data.size // 61), dtype=BATCH)
    n, at, error = kernels.walk(data, 0, data.size, -1, True, PAYLOAD_BYTES_MAX, table)
    assert (at, error) == (data.size, kernels.OK)
    return table[:n]


def batches_of(text: str) -> list[Batch]:
    return [batch for segment in history_of(text).segments for batch in segment.batches]


def random_batches(seed: int) -> list[Batch]:
    teller = Teller()
    for _ in teller.cleanings(story(seed)):
        pass
    return [batch for segment in teller.history.segments for batch in segment.batches]
