"""One worker process of the races: compacts, erases, collects and folds the journal for ever, with leases that expire under it,
a grace that hardly lasts, uploads that fail, and naps.

python -m tests.lake.racing METASTORE_URL SEED STORE_SETTINGS_JSON
"""

from __future__ import annotations

import json
import random
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from headstone.errors import Unfinished
from headstone.lake.jobs import folding
from headstone.lake.jobs.erasure import Tools
from headstone.lake.jobs.job import JobControl
from headstone.lake.jobs.job_plan import JobSettings
from headstone.lake.jobs.upkeep import Upkeep
from headstone.lake.jobs.worker import Worker
from headstone.lake.lake import Lake, open_lake
from headstone.pipeline.inprocess import InProcess
from headstone.storage.stores import ByteSink, Store

LEASE_MS = 40
"""Shorter than a job: two workers on one partition are the rule here."""
GRACE_MS, UPLOAD_MS = 50, 500
"""Objects go while others still read them, and before those who write them have committed: they must fail and lose nothing."""
JOURNAL_OBJECTS_MIN = 5


class FailingStore(Store):
    """Every tenth upload breaks off."""

    chance = random.Random(0)

    @contextmanager
    def writing(self, path: str, *, part_bytes: int = 8 << 20) -> Iterator[ByteSink]:
        with super().writing(path, part_bytes=part_bytes) as sink:
            yield sink
            if self.chance.random() < 0.1:
                raise Unfinished(f"{path}: the connection was lost")

    def put(self, path: str, content: bytes, *, create: bool = False) -> bool:
        """The answer is lost, before or after the object is there."""
        if self.chance.random() < 0.05:
            raise Unfinished(f"{path}: the connection was lost")
        put = super().put(path, content, create=create)
        if self.chance.random() < 0.05:
            raise Unfinished(f"{path}: the connection was lost")
        return put


def main() -> None:
    url, seed, settings = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
    chance = random.Random(seed)
    FailingStore.chance = chance
    folding.OBJECTS_MIN = JOURNAL_OBJECTS_MIN
    opened = open_lake(url, settings=settings)
    lake = Lake(metastore=opened.metastore, store=FailingStore.open(opened.store.url, settings))
    print("ready", flush=True)
    napping = threading.Event()

    def nap() -> None:
        napping.wait(chance.choice((0, 0, 0.02, 0.1)))

    tools = Tools(
        lake=lake, engine=InProcess(1), clock=lambda: int(time.time() * 1000), worker=f"upkeep-{seed}", grace_ms=GRACE_MS,
        upload_ms=UPLOAD_MS,
    )  # fmt: skip
    while True:
        name = f"worker-{seed}-{chance.randrange(3)}"
        worker = Worker(
            name=name, lake=lake, engine=InProcess(1), clock=lambda: int(time.time() * 1000), tell=lambda text: None,
            lease_ms=LEASE_MS, wait_ms=1, partitions_at_once=chance.choice((1, 2, 5)),
            settings=JobSettings(
                commit_bytes=300, dead_share_max=chance.choice((0.3, 1.0, 10.0)),
                path=chance.choice(("auto", "whole", "shuffle")),
            ),
            control=JobControl(before_commit=nap),
            upkeep=Upkeep(tools=tools) if chance.random() < 0.3 else None,
        )  # fmt: skip
        if not worker.work():
            napping.wait(0.02)


if __name__ == "__main__":
    main()
