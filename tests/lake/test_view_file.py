"""`lake read --to FILE`: whole or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headstone.interruption import Interrupted
from headstone.lake.transfer.reading import SCHEMA
from headstone.lake.transfer.views import write_parquet


@pytest.mark.parametrize("failure", [Interrupted, OSError], ids=["given up", "failed"])
def test_a_read_that_ends_early_leaves_the_file_of_before_and_nothing_beside_it(
    tmp_path: Path, failure: type[BaseException]
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        yield from SCHEMA.empty_table().to_batches()
        raise failure

    (tmp_path / "orders.parquet").write_bytes(b"of before")
    with pytest.raises(failure):
        write_parquet(tmp_path / "orders.parquet", batches())
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("orders.parquet", b"of before")]
