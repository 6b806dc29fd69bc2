"""Columns that a log's numbers become: no session is needed for them."""

from __future__ import annotations

from datetime import UTC, datetime

import numpy as np

from headstone.spark.record_columns import TIMESTAMP_MS_MAX, timestamps


def test_a_record_without_a_timestamp_has_none_and_so_has_one_beyond_the_calendar() -> None:
    stamps_ms = np.array([-1, 0, 1_500, TIMESTAMP_MS_MAX, TIMESTAMP_MS_MAX + 1], dtype=np.int64)
    last = datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)
    shown = [None, datetime(1970, 1, 1, tzinfo=UTC), datetime(1970, 1, 1, 0, 0, 1, 500_000, UTC), last, None]
    assert timestamps(stamps_ms).to_pylist() == shown
