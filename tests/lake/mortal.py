"""What a `Life` goes on in: a store whose owner is killed, databases of one kind, sizes that are reached soon."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

from headstone.storage.stores import PART_BYTES, ByteSink, Store
from tests.lake.databases import new_database

LOWERED = {
    "lake.metastore.rows.ROWS_AT_ONCE": (1, 3), "lake.jobs.job_plan.BROADCAST_BYTES_MAX": (0,),
    "lake.jobs.job_plan.SHARE_BYTES": (1, 200), "pipeline.splitting.SPLIT_BYTES_MIN": (0,),
    "lake.jobs.extent_work.UNIT_RECORDS": (1, 5), "lake.jobs.folding.ENTRIES_PER_PART": (1, 3),
    "lake.metastore.replay.EXTENTS_PER_PAGE": (1, 3), "lake.jobs.collection.BATCH": (1, 2),
    "lake.jobs.key_search.SHARE_BYTES": (1,), "lake.jobs.job_plan.COMMIT_BYTES": (0, 300),
    "lake.metastore.journal.ENTRIES_PER_OBJECT": (1, 2), "lake.jobs.store_check.SHARE_BYTES": (1,),
    "lake.jobs.leased_jobs.EXTENTS_AT_ONCE": (1, 2),
}  # fmt: skip
"""Sizes of which these lakes never have as much: each is so small in half of the seeds."""


class Killed(BaseException):
    """What kill -9 is to a process."""


@contextmanager
def lowered(seed: int) -> Iterator[None]:
    chance = random.Random(f"sizes {seed}")
    with ExitStack() as stack:
        for name, values in LOWERED.items():
            if chance.random() < 0.5:
                stack.enter_context(patch(f"headstone.{name}", chance.choice(values)))
        yield


class MortalStore(Store):
    """Its owner is killed in front of a write, or behind it. `between`: what others do in front of each."""

    left = -1
    between: Callable[[], None] = staticmethod(lambda: None)

    def put(self, path: str, content: bytes, *, create: bool = False) -> bool:
        self.between()
        self._count()
        done = super().put(path, content, create=create)
        self._count()
        return done

    def delete(self, paths: Iterable[str]) -> None:
        for path in paths:
            self._count()
            super().delete([path])

    @contextmanager
    def writing(self, path: str, *, part_bytes: int = PART_BYTES) -> Iterator[ByteSink]:
        with super().writing(path, part_bytes=part_bytes) as sink:
            yield sink
            self._count()
        self._count()

    def _count(self) -> None:
        self.left -= 1
        if self.left == 0:
            raise Killed


class Databases:
    """Metastores of one kind: where the next one is made, and copies of them."""

    def __init__(self, root: Path, server: str | None) -> None:
        self.root, self._server, self._count = root, server, 0

    def fresh(self, *, copy_of: str | None = None) -> str:
        self._count += 1
        if self._server is None:
            file = self.root / f"metastore-{self._count}.db"
            if copy_of is not None:
                shutil.copy(copy_of.removeprefix("sqlite:///"), file)
            return f"sqlite:///{file}"
        return new_database(self._server, f"sequence_{id(self)}_{self._count}", copy_of=copy_of)
