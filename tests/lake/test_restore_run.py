"""A run of `lake restore`: what was restored already is not restored again, and groups follow it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headstone.errors import UsageError
from headstone.lake.transfer.restore_request import Means, RestoreRequest
from headstone.lake.transfer.restore_run import RestoreRun, restore_document, run_restore
from headstone.pipeline.engine import never
from headstone.pipeline.inprocess import InProcess
from tests.lake.scene import Scene
from tests.lake.twin import TwinCluster


@contextmanager
def means() -> Iterator[Means]:
    yield Means(engine=InProcess(1), board=None, stop=never)


@contextmanager
def no_means() -> Iterator[Means]:
    raise AssertionError("an engine is started for nothing")
    yield


def test_a_second_run_translates_groups_by_the_map_and_starts_no_engine(scene: Scene, tmp_path: Path) -> None:
    scene.write("N[a]", "N[b]", "N[a]", "N[b]")
    cluster, remarks = TwinCluster(), list[str]()
    cluster.groups["readers", "t"] = {0: 3}
    request = RestoreRequest(topic="t", to_topic="again", map_file=tmp_path / "map.json", groups=("readers",))
    first = run_restore(scene.lake, request, cluster, means(), tell=remarks.append, warn=remarks.append)
    assert (sum(part.records for part in first.partitions), remarks) == (4, [])
    second = run_restore(scene.lake, request, cluster, no_means(), tell=remarks.append, warn=remarks.append)
    assert second == RestoreRun(partitions=(), groups=first.groups)
    assert remarks == ["t is already restored into again: translating groups only"]
    assert restore_document(second) == {"partitions": [], "groups": first.groups}
    cluster.groups["readers", "again"] = {0: 4}
    with pytest.raises(UsageError, match="group readers has already moved on in again"):
        run_restore(scene.lake, request, cluster, no_means(), tell=remarks.append, warn=remarks.append)
