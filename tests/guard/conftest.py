"""The guard's journal in a file of each test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headstone.guard.ledger.journal import Journal
from tests.guard.world import CLUSTER_ID


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal.sqlite", cluster_id=CLUSTER_ID) as opened:
        opened._connection.execute("PRAGMA synchronous = OFF")  # a test's journal needs to survive no power loss
        yield opened
