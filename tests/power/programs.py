"""What is recorded: `python -m tests.power.programs PROGRAM ROOT MARKS` changes files below ROOT and says in MARKS
what is done.

Everything that is imported or compiled is so before; each step is one that a user takes, and is over when its mark is made.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from headstone.coordination.guard_values import Memory
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import Change, KeptAlarm
from headstone.lake.transfer.offset_map import OffsetMap
from headstone.lake.transfer.offset_runs import packed_runs
from tests.log.swaps import BROKER, KAFKA, NOW_MS, PLAIN, SCENARIOS, SMALL, TRANSACTIONS, Scenario, run_compaction
from tests.logs import compact_here
from tests.oracle.notation import History

PLAIN_LOG = "N[a,b] | N[a] | N[c]/gzip N[b] | N[a]"
CHECKPOINTS = (
    ("log-start-offset-checkpoint", "0\n1\nu 0 5\n"),
    ("cleaner-offset-checkpoint", "0\n1\nu 0 1\n"),
)
IN_PLACE = {
    "several partitions": Scenario(
        log=TRANSACTIONS, policy=PLAIN, more=(("t-1", PLAIN_LOG), ("u-0", SMALL)), wave_partitions=2,
        files=(*BROKER, *CHECKPOINTS),
    ),
    "compact,delete": Scenario(
        log=TRANSACTIONS, policy=replace(KAFKA, cleanup_delete=True, retention_ms=NOW_MS - 1_012), more=(("u-0", SMALL),),
        files=(*BROKER, *CHECKPOINTS),
    ),
    "everything expires": SCENARIOS["everything expires"],
    "one output": Scenario(log=TRANSACTIONS, policy=replace(KAFKA, segment_bytes=1 << 30)),
    "more segments than before": SCENARIOS["more segments than before"],
    "bounded": SCENARIOS["trailing batches vanish"],
}  # fmt: skip
OUT = {
    "two topics": Scenario(
        log=TRANSACTIONS, policy=replace(PLAIN, cleanup_delete=True, retention_ms=NOW_MS - 1_006),
        more=(("t-1", PLAIN_LOG), ("u-0", SMALL)), files=(*BROKER, *CHECKPOINTS), wave_partitions=2,
    ),
    "nothing carried over": Scenario(log="N[a] N[a] | N[b]", policy=PLAIN),
    "metadata carried over": Scenario(log="N[a] N[a] | N[b]", policy=PLAIN),
}  # fmt: skip
OUT_TOPIC = "t"
"""The other topic is left out."""
BOOTSTRAP = Path(__file__).parent.parent / "captured" / "bootstrap-3.9.2.checkpoint"
CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"
LAKE = "lake"
LAKE_LOGS = ("N[a,b] N[c]", "N[a,~b] N[d]", "N[e] N[a]")
OFFSET_MAP = "map.json"
GIVEN = "given"
"""Beside the root: what a program reads. It is safe."""


def compact_in_place(scenario: str, root: Path) -> Iterator[str]:
    run_compaction(root / "logs", IN_PLACE[scenario])
    yield "compacted"


def recover_swap(root: Path) -> Iterator[str]:
    from headstone.log.swap import recover

    for directory in sorted(path for path in (root / "logs").iterdir() if path.is_dir()):
        recover(directory)
    yield "recovered"


def write_given(name: str, given: Path) -> None:
    OUT[name].write(given / "logs")
    if name == "metadata carried over":
        inner = given / "logs" / "__cluster_metadata-0" / "a folder in it"
        inner.mkdir(parents=True)
        (inner / "file").write_text("content")
        (inner.parent / f"{0:020d}.log").touch()
        (inner.parent / "00000000000000000007-0000000001.checkpoint").write_bytes(BOOTSTRAP.read_bytes())


def compact_out(name: str, root: Path) -> Iterator[str]:
    """Of logs that grow while they are copied."""
    copied = shutil.copy2

    def grown(source: Path, target: Path) -> None:
        """As much as was written to it until the copy ended."""
        copied(source, target)
        if source.name.endswith(".log") and source.parent.name.startswith(OUT_TOPIC):
            with target.open("ab") as file:
                file.write(b"half a batch")
                os.fsync(file.fileno())

    logs, out, policy = root.parent / GIVEN / "logs", root / "made" / "out", OUT[name].policy
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shutil, "copy2", grown)
        compact_here(logs, out=out, policy=policy, drop_keyless=True, topics=(OUT_TOPIC,))
    yield "compacted"


def _change(number: int, topic: str) -> Change:
    return Change(
        resource=f"topic {topic}", topic=topic, old=(("cleanup", None),), new=(("cleanup", str(number)),), reason="absent",
        evidence="e" * 900, began_ms=number,
    )  # fmt: skip


def write_journal(root: Path) -> Iterator[str]:
    """As a guard does: who leads, what it is about to change, that it has, what it remembers."""
    path = root / "state" / "guard" / "journal.sqlite"
    with Journal.open(path, cluster_id=CLUSTER) as journal:
        yield "opened"
        journal.lead("me", now_ms=0, lease_ms=1000, applies=True)
        yield "leads"
        for number, topic in enumerate(("orders", "users")):
            change = journal.begin(_change(number, topic))
            yield "begun"
            journal.end(change, "done")
            yield "ended"
            journal.remember(topic, Memory())
            yield "remembered"
        journal.set_alarms("orders", [KeptAlarm(kind="wrong", topic="orders", partition=0, detail="d")], now_ms=5)
        yield "alarmed"
        journal.forget("orders")
        yield "forgotten"


OBJECTS = "objects"
A, B, AGAIN = b"a" * 700, b"b" * 9_000, b"again"
OBJECTS_AFTER: tuple[dict[str, bytes], ...] = (
    {},
    {"one/a": A},
    {"one/a": A, "two/deep/b": B},
    {"one/a": A, "two/deep/b": B, "three/c": B},
    {"one/a": AGAIN, "two/deep/b": B, "three/c": B},
    {"one/a": AGAIN, "three/c": B},
    {"one/a": AGAIN},
)
"""After each step of `keep_objects`."""


def keep_objects(root: Path) -> Iterator[str]:
    """What a store on a local disk is asked for."""
    from headstone.storage.stores import Store

    store = Store.open(f"file://{root / OBJECTS}")
    store.put("one/a", A, create=True)
    yield "put"
    with store.writing("two/deep/b") as sink:
        for start in range(0, len(B), 4_096):
            sink.write(B[start : start + 4_096])
    yield "written"
    store.copy("two/deep/b", "three/c")
    yield "copied"
    store.put("one/a", AGAIN)
    yield "put again"
    for path in ("two/deep/b", "three/c"):
        store.delete([path])
        yield f"deleted {path}"


def grow_lake(root: Path) -> Iterator[str]:
    from headstone.cli.main import main

    lake, given = str(root / LAKE), root.parent / GIVEN
    now = ("--now-ms", "100000")
    commands: list[list[str]] = [["init", lake, *now]]
    for number in range(len(LAKE_LOGS)):
        commands.append(["ingest", lake, str(given / str(number)), "--cleanup-policy", "compact"])
    commands.append(["compact", lake, "--all"])
    later = ("--now-ms", "200000")
    commands += [["topics", lake, "drop", "u", "--yes", *later], ["gc", lake, "--apply", "--grace-ms", "0", *later]]
    commands.append(["gc", lake, "--apply", "--grace-ms", "0", "--now-ms", "300000"])
    for command in commands:
        code = main(["lake", *command])
        assert code == 0, command
        yield command[0]


EXPORTS = ("one", "two")
"""Log directories, each with a copy."""


def write_lake(given: Path) -> None:
    """What is exported, and a broker's metadata."""
    from headstone.cli.main import main

    write_lake_logs(given)
    lake = str(given / LAKE)
    commands = [["init", lake], *(["ingest", lake, str(given / str(n))] for n in range(len(LAKE_LOGS)))]
    for command in commands:
        assert main(["lake", *command]) == 0


def export_lake(root: Path) -> Iterator[str]:
    from headstone.cli.main import main
    from headstone.lake.transfer import export

    dirs = [word for name in EXPORTS for word in ("--log-dirs", str(root / name))]
    ids = ["--topic-id", "t=AAAAAAAAQACAAAAAAAAAAQ", "--topic-id", "u=AAAAAAAAQACAAAAAAAAAAg"]
    command = ["lake", "export", str(root.parent / GIVEN / LAKE), "t", "u", *dirs, *ids, "--replication-factor", "2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "WAVE_PARTITIONS", 1)
        assert main([*command, "--quiet"]) == 0
    yield "exported"


RUNS = np.stack([np.arange(0, 3_000, 3), np.arange(1_000), np.full(1_000, 2)], axis=1)
BEGUN = OffsetMap(lake_id="l", topic="t", to_topic="u", as_of_ms=1, starts=(0,), bases=(7,), fingerprints=("of this",))
OFFSET_MAPS = (BEGUN, replace(BEGUN, finished=True, runs={0: packed_runs([RUNS])}))
"""Of a restore: as it begins, and as it has ended."""


def map_offsets(root: Path) -> Iterator[str]:
    for number, each in enumerate(OFFSET_MAPS):
        each.write(root / OFFSET_MAP)
        yield f"map {number}"


VIEW = "view.parquet"
VIEWS = ("old", "new")
"""A key of each record of the file, which is written again."""


def write_views(root: Path) -> Iterator[str]:
    from headstone.lake.transfer.reading import SCHEMA
    from headstone.lake.transfer.views import write_parquet

    for key in VIEWS:
        columns = [[key.encode()] * 2 if name == "key" else [None] * 2 for name in SCHEMA.names]
        batch = pa.record_batch(
            [pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA
        )
        write_parquet(root / VIEW, iter([batch]))
        yield f"view {key}"


def write_lake_logs(given: Path) -> None:
    """A topic that grows from one to the next, and another."""
    history, other = History(), History()
    for number, log in enumerate(LAKE_LOGS):
        history.append(log)
        history.roll()
        history.write_partition(given / "t", "t-0")
        other.append("N[x] |")
        other.write_partition(given / "u", "u-0")
        for name in ("t", "u"):
            for path in (given / name).iterdir():
                target = given / str(number) / path.name
                target.mkdir(parents=True)
                for file in path.iterdir():
                    (target / file.name).write_bytes(file.read_bytes())


PROGRAMS: dict[str, Callable[[Path], Iterator[str]]] = {
    **{f"in place, {name}": partial(compact_in_place, name) for name in IN_PLACE},
    "recovery": recover_swap,
    **{f"out, {name}": partial(compact_out, name) for name in OUT},
    "journal": write_journal,
    "objects": keep_objects,
    "export": export_lake,
    "lake": grow_lake,
    "offset map": map_offsets,
    "view": write_views,
}


def run(program: str, root: Path, marks: Path) -> None:
    descriptor = os.open(marks, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for done in PROGRAMS[program](root):
        os.write(descriptor, f"{done}\n".encode())
    os.close(descriptor)


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
