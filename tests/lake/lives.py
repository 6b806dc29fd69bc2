"""The life of a lake, at random: records come, are compacted, merged and collected; whoever works on it is killed anywhere;
objects, parts of the journal, and what tells whose the store is, are flipped, cut off, appended to, exchanged, lost, and put
back or mended; files that are not the lake's lie in its prefixes; the metastore is lost, or an old backup of it comes back.

The model is a dictionary: the newest record of each key. A lake that is damaged refuses and names what is damaged, or serves
that; after the damage is undone it serves that. Mending may lose keys, and brings back nothing older, unless that is accepted.
"""

from __future__ import annotations

import copy
import random
import shutil
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import pytest

from headstone.errors import HeadstoneError
from headstone.lake.format.keyindex import keys_in
from headstone.lake.format.objects import writing_object
from headstone.lake.format.prefixes import MARKER, OWNER
from headstone.lake.format.spans import Span
from headstone.lake.jobs.collection import collect, garbage
from headstone.lake.jobs.compaction import compact_partition
from headstone.lake.jobs.erasure import Tools, carry_on_erasures, request_erasure
from headstone.lake.jobs.folding import fold
from headstone.lake.jobs.job_plan import JobSettings
from headstone.lake.jobs.key_search import digest_of, with_remembered
from headstone.lake.jobs.mending import mend, planned
from headstone.lake.jobs.proof import prove_erased
from headstone.lake.jobs.rebuild import open_for_rebuild, rebuild, rebuilding
from headstone.lake.jobs.store_check import check_store
from headstone.lake.lake import Lake, adopt_lake, create_lake, joined, metastore_url, open_lake, unchecked_lake
from headstone.lake.metastore.commits import Append
from headstone.lake.metastore.erasure_steps import CAME_AGAIN, CAME_LATER, ERASED, NEVER_SEEN
from headstone.lake.metastore.erasures import Erasure, Erasures
from headstone.lake.metastore.identity import MetastoreCopied, adopt
from headstone.lake.metastore.journal import SetBack, expect_current, record
from headstone.lake.metastore.journal_names import is_journal_path
from headstone.lake.metastore.losses import losses
from headstone.lake.metastore.metastore import Metastore
from headstone.lake.topics import drop_topic
from headstone.lake.transfer.reading import snapshot, table
from headstone.log.reading import chunk_of
from headstone.log.topic_partition import TopicPartition
from headstone.pipeline.inprocess import InProcess
from headstone.storage.stores import Store
from tests.lake.appending import batch_of
from tests.lake.mortal import Databases, Killed, MortalStore
from tests.lake.single import level_partition, table_batches
from tests.oracle.batches import encode

ENGINE = InProcess(1)
TOPICS = ("first-topic", "second-topic")
PARTITIONS = 2
KEYS = "abcdefgh"
SETTINGS = {"delete.retention.ms": 40, "min.cleanable.dirty.ratio": 0}
GRACE_MS, UPLOAD_MS = 50, 100
KILL = 0.2
"""Of the steps, those in which whoever works is killed."""
WRITES_MAX = 6
"""Behind how many writes at most."""
DEEP = 0.3
"""Of the looks at a lake that should be right, those that read every byte."""

KILL_AGAIN = 0.5
"""Of the tries to rebuild or to mend, those in which whoever tries is killed."""
FOREIGN = (
    "notes", "objects/notes", "objects/zz/5", "journal/notes", "journal/5", "journal/123456", f"journal/{10**12:020d}",
    "journal-end/notes", "journal-end/5", "journal-end/123456", "journal-base/5", "journal-base/123456",
    "journal-base-parts/notes", "journal-base-parts/5-0badcafe/00000000", f"journal-base-parts/{1:020d}-0badcafe/5",
)  # fmt: skip
"""Files that harm nobody, and that nobody deletes."""
GIVE_UP = 0.5
"""Of the times that older objects come back, those in which the newer ones are gone for good."""
STRANGE = (f"journal-end/{10**12:020d}", f"journal-base/{10**12:020d}")
"""Files that may tell of commits which the metastore lacks, until somebody takes them away."""

ON_A_SERVER = {"drops": True, "erasures": True, "object_backups": True, "foreign": True}
EMBEDDED = {**ON_A_SERVER, "copies": True}
"""Of what may happen all that can: a metastore of its own is no part of a directory."""
TIMELY = ("tables", "ends", "made", "written", "ever", "asked", "came", "came_just_now", "foreign")
"""What of a `Life` is as it was when a whole lake is put back."""

Table = dict[bytes, bytes | None]
"""The newest of each key, tombstones too."""


class Life:
    """One lake, what is done to it, and what it should hold."""

    def __init__(
        self, seed: int, root: Path, databases: Databases, *, copies: bool = False, drops: bool = False,
        erasures: bool = False, object_backups: bool = False, foreign: bool = False,
    ) -> None:  # fmt: skip
        self.chance, self.counts = random.Random(seed), Counter[str]()
        self.kills = random.Random(f"kills {seed}")
        self.ids = random.Random(f"ids {seed}")
        """Of objects: which one is chosen depends on their order, and a seed is one sequence."""
        self.now_ms = 1
        self.databases = databases
        self.directory = root / "lake"
        self.directory.mkdir()
        self.url = f"sqlite:///{self.directory / 'metastore.db'}" if copies else databases.fresh()
        self.objects = f"file://{self.directory / 'objects'}"
        create_lake(self.url, self.objects, now_ms=0).close()
        self.tables: dict[TopicPartition, Table] = {}
        self.ends: Counter[TopicPartition] = Counter()
        self.made: Counter[str] = Counter()
        self.backups: list[str] = []
        self.written: set[tuple[TopicPartition, bytes, bytes | None]] = set()
        self.foreign: dict[str, bytes] = {}
        """What is in the store and not the lake's."""
        self.whole: dict[str, object] | None = None
        """What the lake held when all of its directory was copied last."""
        self.ever: set[tuple[str, bytes]] = set()
        """Topics and keys of which there was a record."""
        self.asked: dict[tuple[str, bytes], Erasure] = {}
        """How far each erasure was when somebody looked last, and whether a record has come since it was asked for."""
        self.came: set[tuple[str, bytes]] = set()
        self.came_just_now: set[tuple[str, bytes]] = set()
        self.lake = self._open()
        self.steps: list[tuple[int, Callable[[], None]]] = [
            (8, self.append), (5, self.compact), (2, self.level), (3, self.collect), (1, self.fold), (1, self.back_up),
            (1, self.set_back), (1, self.lose_metastore), (5, self.damage_object), (3, self.damage_journal),
            (3, self.damage_identity), *([(1, self.copy), (1, self.move), (2, self.put_back)] if copies else ()),
            *([(1, self.drop)] if drops else ()), *([(4, self.ask), (6, self.carry_on)] if erasures else ()),
            *([(2, self.set_objects_back)] if object_backups else ()),
            *([(2, self.leave_foreign), (1, self.leave_strange)] if foreign else ()),
        ]  # fmt: skip
        for topic in TOPICS:
            self.make(topic)

    def _open(self) -> Lake:
        lake = self._join(Metastore.open(self.url))
        expect_current(lake.metastore, lake.store)
        return lake

    def _join(self, metastore: Metastore) -> Lake:
        return joined(metastore, MortalStore(self.objects, Store.open(self.objects)._store))

    @property
    def store(self) -> MortalStore:
        assert isinstance(self.lake.store, MortalStore)
        return self.lake.store

    def live(self, steps: int) -> None:
        with patch.object(uuid, "uuid4", lambda: uuid.UUID(int=self.ids.getrandbits(128), version=4)):
            self._live(steps)

    def _live(self, steps: int) -> None:
        for _ in range(steps):
            self.now_ms += self.chance.randint(1, 30)
            self.lake.metastore.give_clock(self.now_ms)
            weights, bodies = zip(*self.steps, strict=True)
            (body,) = self.chance.choices(bodies, weights)
            self.counts[body.__name__] += 1
            if self.chance.random() < KILL:
                self.store.left = self.chance.randint(1, WRITES_MAX)
            try:
                body()
            except Killed:
                self.counts["kills"] += 1
                self.reopen()
            self.store.left = -1
            self.check()

    def reopen(self) -> None:
        """By whoever comes next: nobody knows how far the other one came."""
        self.lake.close()
        self.lake = self._open()

    def make(self, topic: str) -> None:
        self.lake.metastore.create_topic(topic, PARTITIONS, SETTINGS)
        self.made[topic] += 1
        self.tables |= {TopicPartition(topic, number): {} for number in range(PARTITIONS)}

    def append(self) -> None:
        """To some partitions, in one object."""
        metastore = self.lake.metastore
        some = self.chance.sample(sorted(self.tables), self.chance.randint(1, len(self.tables)))
        rows = {at: [self._row(at) for _ in range(self.chance.randint(1, 5))] for at in some}
        ends = metastore.next_offsets(some)
        try:
            (object_id,) = metastore.register(1)
            appends = {}
            with writing_object(self.store, object_id, metastore.lake_id) as writer:
                for at in some:
                    data = encode(batch_of(ends[at], rows[at], self.now_ms))
                    keys = keys_in([chunk_of(str(at), data)], metastore.hash_key)
                    extent = writer.add(
                        at.topic, at.number, Span(ends[at], ends[at] + len(rows[at])), [data], records=len(rows[at]),
                        max_timestamp_ms=self.now_ms, keys=keys if self.chance.random() < 0.9 else None,
                    )  # fmt: skip
                    appends[at] = Append(expected_next=ends[at], extents=(extent,))
            metastore.append(with_remembered(self.lake, appends), {object_id: writer.size})
        finally:
            if metastore.next_offsets(some) != ends:
                for at in some:
                    self.tables[at] |= dict(rows[at])
                    self.written |= {(at, key, value) for key, value in rows[at]}
                self.came_just_now |= {(at.topic, key) for at in some for key, _ in rows[at]}
                self.ever |= self.came_just_now
                self.came |= self.came_just_now

    def _row(self, at: TopicPartition) -> tuple[bytes, bytes | None]:
        self.counts["records"] += 1
        value = f"{at.topic}/{self.made[at.topic]}/{self.counts['records']}/".encode() + b"." * self.chance.randint(
            0, 60
        )
        return self.chance.choice(KEYS).encode(), value if self.chance.random() < 0.75 else None

    def ask(self) -> None:
        """That a key be erased; some are asked for before they come, if they ever do."""
        topic, key, self.store.left = self.chance.choice(TOPICS), self.chance.choice(KEYS + "xyz").encode(), -1
        request_erasure(self.lake, topic, [key], deadline_ms=2**40, clock=lambda: self.now_ms)
        self.came.discard((topic, key))
        self.asked[topic, key] = self._erasure(topic, key)

    def carry_on(self) -> None:
        carry_on_erasures(self._tools(), TOPICS)

    def _tools(self) -> Tools:
        return Tools(lake=self.lake, engine=ENGINE, clock=lambda: self.now_ms, grace_ms=GRACE_MS, upload_ms=UPLOAD_MS)

    def _erasure(self, topic: str, key: bytes) -> Erasure:
        digest = digest_of(key, self.lake.metastore.hash_key)
        return next(each for each in Erasures(self.lake.metastore).of(topic) if each.key_digest == digest)

    def _check_erasures(self) -> None:
        """What came in is seen, and not called erased; what never did is not called erased either."""
        for (topic, key), before in self.asked.items():
            now, came = self._erasure(topic, key), (topic, key) in self.came
            self.counts[f"erasures: {now.step}"] += now.step != before.step
            assert now.seen or not came, f"{key!r} came in and was not seen: {now}"
            assert now.step != NEVER_SEEN or not came, f"{key!r} came in and was never seen: {now}"
            assert now.step not in (ERASED, CAME_AGAIN) or (topic, key) in self.ever, f"{key!r} never was: {now}"
            if (topic, key) in self.came_just_now and not before.is_open:
                was_erased = before.step in (ERASED, CAME_AGAIN)
                assert now.step == (CAME_AGAIN if was_erased else CAME_LATER), f"{before.step}, then {now.step}"
            self.asked[topic, key] = now
        self.came_just_now.clear()

    def compact(self) -> None:
        share = self.chance.choice((0.0, 0.3, 1.0))
        compact_partition(
            self.lake, self._any(), ENGINE, now_ms=self.now_ms,
            settings=JobSettings(dead_share_max=share, commit_bytes=self.chance.choice((1, 64 << 20))),
        )  # fmt: skip

    def level(self) -> None:
        level_partition(
            self.lake, self._any(), clock=lambda: self.now_ms, extent_bytes=self.chance.choice((300, 2000)),
            purge=self.chance.random() < 0.3, engine=ENGINE,
        )  # fmt: skip

    def collect(self) -> None:
        found = garbage(self.lake, now_ms=self.now_ms, grace_ms=GRACE_MS, upload_ms=UPLOAD_MS)
        self.counts["objects collected"] += len(collect(self.lake, found))

    def fold(self) -> None:
        self.counts["journals folded"] += fold(self.lake) > 0

    def back_up(self) -> None:
        """As it is now, told or not."""
        self.lake.close()
        self.backups = [*self.backups[-2:], self.databases.fresh(copy_of=self.url)]
        self.lake = self._open()

    def set_back(self) -> None:
        """An old backup comes back: refused, until it is brought up to date."""
        if not self.backups:
            return
        record(self.lake.metastore, self.store)  # what was told to nobody is lost with a metastore
        self.lake.close()
        url = self.databases.fresh(copy_of=self.chance.choice(self.backups))
        with suppress(SetBack):
            if self._is_embedded:  # put back in its place
                shutil.copy(url.removeprefix("sqlite:///"), self.url.removeprefix("sqlite:///"))
                open_lake(self.url).close()
            else:
                unchecked_lake(url).close()
                with pytest.raises(MetastoreCopied):
                    open_lake(url)
            self.counts["backups that were not old"] += 1
        self._rebuild(url, None)

    def set_objects_back(self) -> None:
        """Every other time they are copied; then the copy comes back alone: refused, until the newer ones are there again, or
        are given up."""
        self.store.left = -1
        record(self.lake.metastore, self.store)
        here, older = Path(self.objects.removeprefix("file://")), self.databases.root / "older objects"
        if not older.exists():
            shutil.copytree(here, older)
            return
        newer = self.databases.root / "newer objects"
        ends = [sorted(path.name for path in (root / "journal-end").iterdir()) for root in (here, older)]
        if ends[0] != ends[1]:
            self.lake.close()
            here.rename(newer)
            shutil.copytree(older, here)
            with pytest.raises(HeadstoneError):
                open_lake(self.url).close()
            self.counts["older objects that were refused"] += 1
            if self.chance.random() < GIVE_UP:
                self._go_on_with_older_objects()
            else:
                shutil.rmtree(here)
                newer.rename(here)
            shutil.rmtree(newer, ignore_errors=True)
            open_lake(self.url).close()
            self.lake = self._open()
        shutil.rmtree(older)

    def _go_on_with_older_objects(self) -> None:
        """What is served then was there once, and the next who looks finds nothing wrong."""
        with suppress(HeadstoneError):  # who has adopted the lake since is not told in the older objects
            open_lake(self.url, damaged=True).close()
        adopt_lake(self.url).close()
        self.lake = self._join(Metastore.open(self.url))
        assert self._mend(accept_older_values=True)
        here = Path(self.objects.removeprefix("file://"))
        self.foreign = {
            path: content for path in FOREIGN if (here / path).exists() for content in [(here / path).read_bytes()]
        }
        for at in self.tables:
            held = {key: entry.value for key, entry in table(self.lake, at).items()}
            assert {(at, key, value) for key, value in held.items()} <= self.written, f"{at}: what was never written"
            self.tables[at] = dict(held)
        for _ in range(2):  # what was collected since the copy was made is back, and nobody points at it
            self.now_ms += 1
            self.lake.metastore.give_clock(self.now_ms)
            collect(self.lake, garbage(self.lake, now_ms=self.now_ms, grace_ms=-1, upload_ms=-1))
        self.lake.close()
        self.counts["older objects that were gone on with"] += 1

    def lose_metastore(self) -> None:
        record(self.lake.metastore, self.store)
        self.lake.close()
        self._rebuild(self.databases.fresh(), self.objects)

    @property
    def _is_embedded(self) -> bool:
        return self.url.endswith("lake/metastore.db")

    def _rebuild(self, url: str, location: str | None) -> None:
        """Whoever is killed in it begins again."""
        if self._is_embedded:
            if location is None:
                shutil.copy(url.removeprefix("sqlite:///"), self.url.removeprefix("sqlite:///"))
            else:
                Path(self.url.removeprefix("sqlite:///")).unlink()
        else:
            self.url = url
        while not self._is_rebuilt(location):
            self.counts["kills in a rebuild"] += 1
        open_lake(self.url).close()
        self.lake = self._open()

    def _is_rebuilt(self, location: str | None) -> bool:
        with open_for_rebuild(self.url, location) as opened:
            made = self._join(opened.metastore)
            assert isinstance(made.store, MortalStore)
            made.store.left = self._left()
            try:
                assert (rebuild(made).doubt, made.metastore.clock() <= self.now_ms) == ("", True)
                made.metastore.give_clock(self.now_ms)
                adopt(made.metastore, made.store)
            except Killed:
                return False
        return True

    def _left(self) -> int:
        """Writes, for whoever rebuilds or mends, until the kill; -1: there is none."""
        return self.kills.randint(1, WRITES_MAX) if self.kills.random() < KILL_AGAIN else -1

    def damage_object(self) -> None:
        self._damage([path for path in self.store.list("objects") if path not in self.foreign])

    def damage_journal(self) -> None:
        self._damage([path for path in self.store.list() if is_journal_path(path) and path not in self.foreign])

    def damage_identity(self) -> None:
        self._damage([MARKER, OWNER])

    def _damage(self, paths: list[str]) -> None:
        """One of them, or two that are exchanged. What is tried then is refused or right; then it is undone, or mended."""
        self.store.left = -1
        if not paths:
            return
        record(self.lake.metastore, self.store)
        path = self.chance.choice(paths)
        content = self.store.read(path, 0, self.store.size(path))
        undo = {path: content}
        kind = self.chance.choice(("flipped", "cut off", "appended to", "lost", "exchanged"))
        self.counts[f"{path.partition('/')[0]}: {kind}"] += 1
        if kind == "flipped":
            changed = bytearray(content)
            changed[self.chance.randrange(len(content))] ^= 1 << self.chance.randrange(8)
            self.store.put(path, bytes(changed))
        elif kind == "cut off":
            self.store.put(path, content[: self.chance.randrange(len(content))])
        elif kind == "appended to":
            self.store.put(path, content + b"{}\n")
        elif kind == "lost":
            self.store.delete([path])
        else:
            other = self.chance.choice(paths)
            undo[other] = self.store.read(other, 0, self.store.size(other))
            self.store.put(path, undo[other])
            self.store.put(other, content)
        findings = [finding for finding in check_store(self.lake, engine=ENGINE).findings if not finding.past]
        self.counts["damage that nobody needs to know of"] += not findings
        refused = self._probe(undo)
        if refused:
            assert findings, f"{kind} {path}: refused, and no check names it: {refused}"
        mends = bool(findings) and self.chance.random() < 0.3
        if mends and self._mend():
            undo = {}
        for each, was in undo.items():
            self.store.put(each, was)
        if mends:
            self._forget_lost()

    def _probe(self, damaged: Iterable[str]) -> list[str]:
        """What was refused. Whatever was not is right."""
        probes = [self._open_again, self._read_all, self._compact_all, self._level_all, self._rebuild_aside]
        refused = []
        for probe in self.chance.sample(probes, self.chance.randint(1, len(probes))):
            try:
                probe()
            except HeadstoneError as error:
                refused.append(f"{probe.__name__}: {error}")
        names = [path.rpartition("/")[2] for path in damaged]
        unnamed = [told for told in refused if "journal" not in told and not any(name in told for name in names)]
        assert unnamed == [], f"{names} are not named"
        self.counts["refusals"] += len(refused)
        return refused

    def _open_again(self) -> None:
        open_lake(self.url).close()

    def _read_all(self) -> None:
        for at in sorted(self.tables):
            self._check_table(at)

    def _compact_all(self) -> None:
        for at in sorted(self.tables):
            compact_partition(self.lake, at, ENGINE, now_ms=self.now_ms)

    def _level_all(self) -> None:
        for at in sorted(self.tables):
            level_partition(self.lake, at, clock=lambda: self.now_ms, extent_bytes=300, engine=ENGINE)

    def _rebuild_aside(self) -> None:
        """From the store alone: what comes of it is right, or it says that something may be missing."""
        with rebuilding(self.databases.fresh(), self.objects) as made:
            done = rebuild(made)
        told, here = made.metastore, self.lake.metastore
        assert told.hash_key == here.hash_key
        assert done.doubt or (told.topics(), told.next_offsets()) == (here.topics(), here.next_offsets())
        made.close()

    def _mend(self, *, accept_older_values: bool = False) -> bool:
        """False: something was not mended, because older values might come back by it; the rest was."""
        while True:
            self.store.left = self._left()
            try:
                plan = planned(self.lake, check_store(self.lake, engine=ENGINE))
                left = mend(self.lake, plan, ENGINE, accept_older_values=accept_older_values)
                break
            except Killed:
                self.counts["kills in a mend"] += 1
                self.lake.close()
                self.lake = self._join(Metastore.open(self.url))
        self.store.left = -1
        self.counts["extents mended"] += len(plan.mends) - len(left)
        return not left

    def _forget_lost(self) -> None:
        """What is served after mending is right, or not there; and that is told."""
        with self.lake.metastore.transaction() as connection:
            lossy = {loss.partition for loss in losses(connection)}
        for at, newest in self.tables.items():
            held = {key: entry.value for key, entry in table(self.lake, at).items()}
            right = living(newest)
            assert held.items() <= right.items(), f"{at}: mending brought back {held.items() - right.items()}"
            assert held == right or at in lossy
            self.counts["keys lost"] += len(right) - len(held)
            self.tables[at] = dict(held)

    def copy(self) -> None:
        """An experiment on a copy of the directory is none on the original, and a copy is as good a lake."""
        self.lake.close()
        other = self.directory.parent / "copy"
        shutil.copytree(self.directory, other)
        with open_lake(metastore_url(str(other))) as lake:
            if self.chance.random() < 0.5:
                for topic in TOPICS:
                    drop_topic(lake, topic)
            else:
                self._work_with(lake)
            collect(lake, garbage(lake, now_ms=self.now_ms, grace_ms=-1, upload_ms=-1))
            self.counts["foreign files in copies"] += len(self.foreign)
            assert check_faults(lake) == []
        shutil.rmtree(other)
        self.lake = self._open()

    def _work_with(self, lake: Lake) -> None:
        for at in sorted(self.tables):
            compact_partition(lake, at, ENGINE, now_ms=self.now_ms, settings=JobSettings(dead_share_max=0.0))
            level_partition(lake, at, clock=lambda: self.now_ms, extent_bytes=2000, purge=True, engine=ENGINE)
        fold(lake)
        for at in sorted(self.tables):
            assert {key: entry.value for key, entry in table(lake, at).items()} == living(self.tables[at])
        self.counts["copies that were worked with"] += 1

    def put_back(self) -> None:
        """Every other time all of the directory is copied; then the copy is put back in its place."""
        self.store.left = -1
        copied = self.databases.root / "whole lake"
        self.lake.close()
        if self.whole is None:
            shutil.copytree(self.directory, copied)
            self.whole = {name: copy.deepcopy(getattr(self, name)) for name in TIMELY}
        else:
            shutil.rmtree(self.directory)
            copied.rename(self.directory)
            for name, value in self.whole.items():
                setattr(self, name, value)
            self.whole, self.backups = None, []
            shutil.rmtree(self.databases.root / "older objects", ignore_errors=True)
            with open_lake(self.url) as lake:
                lake.metastore.give_clock(self.now_ms)
            self.counts["whole lakes put back"] += 1
        self.lake = self._open()

    def leave_foreign(self) -> None:
        """For the rest of the lake's life, or until somebody takes it away."""
        self.store.left, path = -1, self.chance.choice(FOREIGN)
        if path in self.foreign:
            self._take_away()
        else:
            self.foreign[path] = self.chance.choice((b"", b"{}\n", b"mine\n"))
            self.store.put(path, self.foreign[path])

    def _take_away(self) -> None:
        self.store.delete(self.foreign)
        self.foreign.clear()

    def leave_strange(self) -> None:
        """Whoever works with the lake is refused by its name; whoever checks or mends it is not, and mends nothing of it."""
        self.store.left, path = -1, self.chance.choice(STRANGE)
        record(self.lake.metastore, self.store)
        self.store.put(path, self.chance.choice((b"", b"{}\n", b"mine\n")))
        with pytest.raises(HeadstoneError, match=path):
            open_lake(self.url).close()
        with open_lake(self.url, damaged=True) as lake:
            check = check_store(lake)
            assert path in [finding.path for finding in check.findings]
            assert mend(lake, planned(lake, check), ENGINE) == []
            assert path in [finding.path for finding in check_store(lake).findings]
        self.store.delete([path])

    def move(self) -> None:
        self.lake.close()
        other = self.directory.parent / f"moved-{self.counts['move']}" / "lake"
        other.parent.mkdir()
        self.directory.rename(other)
        self.directory = other
        self.url = f"sqlite:///{other / 'metastore.db'}"
        self.objects = f"file://{other / 'objects'}"
        self.backups = []
        if self.whole is not None:
            shutil.rmtree(self.databases.root / "whole lake")
            self.whole = None
        self.lake = self._open()

    def drop(self) -> None:
        """Nothing of it is left in the store once its time has passed, wherever whoever drops it was killed. Of foreign files
        nothing is proven: they are taken away first."""
        left, self.store.left = self.store.left, -1
        self._take_away()
        self.store.left = left
        topic = self.chance.choice(TOPICS)
        marker = f"{topic}/{self.made[topic]}/".encode()
        while topic in self.lake.metastore.topics():
            self._or_killed(lambda: drop_topic(self.lake, topic))
        for _ in range(4):
            self.now_ms += GRACE_MS + UPLOAD_MS
            self.lake.metastore.give_clock(self.now_ms)
            self._or_killed(lambda: carry_on_erasures(self._tools(), [topic]))
        assert prove_erased(self.lake, topic, None).verdict == "erased"
        held = [file for file in Path(self.objects.removeprefix("file://")).rglob("*") if file.is_file()]
        assert [file.name for file in held if marker in file.read_bytes()] == []
        self.make(topic)

    def _or_killed(self, body: Callable[[], object]) -> None:
        try:
            body()
        except Killed:
            self.counts["kills within a drop"] += 1
            self.reopen()

    def _any(self) -> TopicPartition:
        return self.chance.choice(sorted(self.tables))

    def _check_table(self, at: TopicPartition) -> None:
        right = living(self.tables[at])
        assert {key: entry.value for key, entry in table(self.lake, at).items()} == right
        batches = table_batches(self.lake, at, snapshot(self.lake, at))
        by_lists = {
            key: value
            for batch in batches
            for key, value in zip(batch.column("key").to_pylist(), batch.column("value").to_pylist(), strict=True)
        }
        assert by_lists == right

    def check(self) -> None:
        """Nothing is damaged: all of it is right, and every check says so."""
        self._read_all()
        self._check_erasures()
        faults = self.lake.metastore.check()
        assert faults == [], faults
        deep = ENGINE if self.chance.random() < DEEP else None
        check = check_store(self.lake, engine=deep)
        wrong = [str(finding) for finding in check.findings if not finding.past]
        assert wrong == [], wrong
        told = set(check.foreign) ^ self.foreign.keys()
        assert told == set(), f"told to be foreign and are not, or the other way round: {sorted(told)}"
        for path, content in self.foreign.items():
            assert (Path(self.objects.removeprefix("file://")) / path).read_bytes() == content


def check_faults(lake: Lake) -> list[object]:
    return [*lake.metastore.check(), *(each for each in check_store(lake, engine=ENGINE).findings if not each.past)]


def living(newest: Table) -> Table:
    return {key: value for key, value in newest.items() if value is not None}
