"""Settings that a readmission changes for a while: Kafka's list of limited replicas."""

from __future__ import annotations

import pytest

from headstone.guard.loans import with_replica


@pytest.mark.parametrize(
    ("listed", "wanted"),
    [
        (None, "0:3"),
        ("", "0:3"),
        ("1:2", "1:2,0:3"),
        ("0:3", "0:3"),
        ("1:2,0:3", "1:2,0:3"),
        ("*", "*"),
        ("0:33", "0:33,0:3"),
    ],
)
def test_a_replica_is_limited_beside_those_that_are_already(listed: str | None, wanted: str) -> None:
    assert with_replica(listed, 0, 3) == wanted
