"""A lake whose objects hold extents of several topics, fed from logs that grow together."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.compaction import Compacted, compact_partition
from headstone.lake.jobs.erasure import Tools
from headstone.lake.jobs.job_plan import JobSettings
from headstone.lake.lake import Lake
from headstone.lake.transfer.ingest import ingest
from headstone.lake.transfer.reading import records
from headstone.log.directory import find_partitions
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from tests.lake.appending import log_of
from tests.oracle.notation import History

ORDERS, USERS = TopicPartition("orders", 0), TopicPartition("users", 0)
GRACE_MS, UPLOAD_MS = 100, 500
ZSTD_FRAME = b"\x28\xb5\x2f\xfd"
PEOPLE = " ".join(f"N[person{i}]" for i in range(20))


def collect_all(lake: Lake) -> list[str]:
    return collect(lake, garbage(lake, now_ms=1000, grace_ms=0))


class Town:
    def __init__(self, lake: Lake, root: Path, *, codec: str = "", now_ms: int = 5) -> None:
        self.lake, self.now_ms = lake, now_ms
        self._root, self._codec = root, codec
        self._histories: dict[str, History] = {}

    def grow(self, **texts: str) -> None:
        """Of each topic what is new; all of it in one object."""
        logs = []
        for topic, text in texts.items():
            history = self._histories.setdefault(topic, History())
            terms = " ".join(term if term == "|" else term + self._codec for term in text.split())
            logs.append(log_of(self._root / "logs", topic, terms, history=history))
        ingest(self.lake, find_partitions(logs), clock=self.clock, engine=InProcess(1))

    def forget_log(self, topic: str) -> None:
        self._histories[topic] = History()

    def clock(self) -> int:
        return self.now_ms

    def compact(self, *names: TopicPartition, now_ms: int | None = None, **settings: Any) -> list[Compacted]:
        moment_ms, given = self.now_ms if now_ms is None else now_ms, JobSettings(**settings)
        return [compact_partition(self.lake, name, InProcess(1), now_ms=moment_ms, settings=given) for name in names]

    def collect(self) -> list[str]:
        return collect_all(self.lake)

    def tools(self, **more: Any) -> Tools:
        given: dict[str, Any] = {"grace_ms": GRACE_MS, "upload_ms": UPLOAD_MS, **more}
        return Tools(lake=self.lake, engine=InProcess(1), clock=self.clock, **given)

    def held(self, name: TopicPartition) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(record.offset, record.key, record.value) for record in records(self.lake, name)]

    def search(self, *needles: bytes) -> list[str]:
        """Names of stored files that hold one of them, as they are or in what is compressed there. Knows no format of the
        lake's."""
        files = [path for path in Path(self.lake.store.url.removeprefix("file://")).rglob("*") if path.is_file()]
        return sorted(path.name for path in files if holds(path.read_bytes(), needles))


def holds(content: bytes, needles: tuple[bytes, ...]) -> bool:
    return any(needle in piece for piece in (content, *unpacked(content)) for needle in needles)


def unpacked(content: bytes) -> Iterator[bytes]:
    start = content.find(ZSTD_FRAME)
    while start >= 0:
        yield zstandard.ZstdDecompressor().decompressobj().decompress(content[start:])
        start = content.find(ZSTD_FRAME, start + 1)
