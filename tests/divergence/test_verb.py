"""`headstone audit` from the command line: verdicts, exit codes, proofs, what was compared and by what, what it refuses."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from headstone import __version__
from headstone.cli.main import main
from headstone.divergence.identity import COMMON_MIN, different_contents, different_ids
from headstone.divergence.views import MARKER, SPAN, STAMP, ReplicaFacts
from headstone.log.checkpoints import HIGH_WATERMARK, META_PROPERTIES, PARTITION_METADATA, write_offsets
from headstone.pipeline.compaction import CompactionRequest, compact
from headstone.pipeline.inprocess import InProcess
from headstone.retention.policy import Policy, kafka_rules
from headstone.sim.samples import SampleSettings
from headstone.sim.synth import write_sample
from headstone.storage.stores import Store
from testbed.s3 import BUCKET, s3
from tests.oracle.cleaner import header_only
from tests.oracle.notation import History, parse_term

HEALTHY = "N[a] N[b] T[a] N[c] | P1[d] C1 N[b] | N[e]"
DAY_MS = 86_400_000


def replica(root: Path, *terms: str, name: str = "t-0") -> str:
    history = History()
    for term in terms:
        history.append(term)
    history.write_partition(root, name)
    return str(root)


def replicas(root: Path, *terms: str) -> list[str]:
    """In directories that are called 1, 2 and so on."""
    return [replica(root / str(number), term) for number, term in enumerate(terms, start=1)]


def number_brokers(*roots: str, first: int = 0) -> None:
    for number, root in enumerate(roots, start=first):
        (Path(root) / META_PROPERTIES).write_text(f"version=1\nnode.id={number}\n")


@pytest.fixture
def pair(tmp_path: Path) -> tuple[str, str]:
    first, second = replicas(tmp_path, HEALTHY, HEALTHY)
    return first, second


Told = Callable[..., Any]
"""With the exit code that it is to have, and more words: what an audit says."""


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Told:
    def run(code: int, *words: str, now_ms: int = NOW_MS) -> Any:
        assert main(["audit", *words, "--engine", "process", "--output", "json", "--now-ms", str(now_ms)]) == code
        return json.loads(capsys.readouterr().out)

    return run


def test_replicas_that_agree_are_clean(told: Told, pair: tuple[str, str]) -> None:
    """One of them has been compacted: uneven cleaning is no difference."""
    first, second = pair
    policy = kafka_rules(Policy(now_ms=10**12))
    compact(CompactionRequest(paths=(second,), out=None, policy=policy, progress=False), InProcess(), lambda text: None)
    one = told(0, first, second)
    assert (one["verdict"], one["partitions"][0]["findings"]) == ("clean", [])
    counts = [(r["live_keys"], r["records"]) for r in one["partitions"][0]["replicas"]]
    assert counts[0][0] == counts[1][0] == 4
    assert counts[0][1] > counts[1][1]


def test_a_missed_tombstone_is_found_shown_and_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], told: Told
) -> None:
    first, second = replicas(tmp_path, "N[k] N[b] T[k] N[c] | N[z]", "N[k] N[b] +1 N[c] | N[z]")
    one = told(1, first, second, "--findings", str(tmp_path / "f.parquet"), "--key", "k", "--key", "none")
    (finding,) = one["partitions"][0]["findings"]
    assert (one["verdict"], finding["class"], finding["replica"], finding["key"], finding["offset"], finding["sure"]) == (
        "diverged", "deleted-reappears", second, "k", 0, "certain",
    )  # fmt: skip
    assert finding["served"] == {first: "deleted at 2", second: "present at 0"}
    assert finding["file"] == f"{second}/t-0/00000000000000000000.log"
    assert any("tombstone" in step for step in finding["repair"])
    assert finding["commands"] == []
    number_brokers(first, second, first=7)
    steps = told(1, first, second)["partitions"][0]["findings"][0]["commands"]
    plans = [json.loads(step.split("'")[3])["partitions"][0]["replicas"] for step in steps if step.startswith("printf")]
    assert plans == [[7, 8], [7], [7, 8]]
    tools = [step.split()[0] + step.split()[-1] if "reassign" in step else step.split()[0] for step in steps]
    moved = ["printf", "kafka-reassign-partitions.sh--execute", "kafka-reassign-partitions.sh--verify"]
    assert tools == [*moved, "kafka-leader-election.sh", *moved, *moved]
    assert steps[3].endswith("--topic t --partition 0")
    assert one["proofs"] == [
        {"key": "k", "partition": "t-0", "replicas": {first: "deleted at 2; 1 more on disk", second: "present at 0"}},
        {"key": "none", "partition": None, "replicas": {}},
    ]
    assert pq.read_table(tmp_path / "f.parquet").to_pylist()[0]["class"] == "deleted-reappears"
    page = tmp_path / "audit.html"
    assert main(["audit", first, second, "--engine", "process", "--report", str(page)]) == 1
    html = page.read_text()
    assert html.count("<circle") == 1
    assert "deleted-reappears at 0" in html
    assert "http" not in html.replace("http-equiv", "")
    text = capsys.readouterr().out
    assert "diverged: 1 partition, 1 finding" in text
    assert "deleted-reappears on" in text


def test_the_same_offset_with_other_bytes_is_another_divergence(tmp_path: Path, told: Told) -> None:
    first, second = replicas(tmp_path, "N[a] N[b] N[a] | N[z]", "N[a] N[q] N[a] | N[z]")
    one = told(1, first, second)
    assert {finding["class"] for finding in one["partitions"][0]["findings"]} == {"other"}


def test_behind_a_transaction_that_never_ends_there_are_consumers_too(tmp_path: Path, told: Told) -> None:
    """read_uncommitted ones, the default: what they are told behind the last stable offset of a replica is compared as well."""
    first, second = replicas(tmp_path, "P1[x] C1 N[k] T[k] N[c] | N[z]", "P1[x] +1 N[k] +1 N[c] | N[z]")
    one = told(1, first, second)
    found = [(finding["class"], finding["key"], finding["isolation"]) for finding in one["partitions"][0]["findings"]]
    assert found == [("deleted-reappears", "k", "read_uncommitted"), ("read-committed-frozen", None, "read_committed")]
    assert {finding["replica"] for finding in one["partitions"][0]["findings"]} == {second}
    another = replica(tmp_path / "5", "P1[x] C1 N[k] T[k] N[c] | N[z]")
    more = told(1, first, second, another)["partitions"][0]["findings"]
    assert [(finding["class"], finding["replica"]) for finding in more] == [
        ("deleted-reappears", second), ("read-committed-frozen", second),
    ]  # fmt: skip
    third = replica(tmp_path / "3", "P1[x] C1 N[k] N[c] | N[z]")
    fourth = replica(tmp_path / "4", "P1[x] C1 N[k] N[c] | N[z] P1[y]")
    assert told(0, third, fourth)["verdict"] == "clean"


def test_a_deletion_that_is_not_decided_yet_explains_what_is_gone_elsewhere(tmp_path: Path, told: Told) -> None:
    """The replica that is behind has the tombstone, and will get the marker: it will not show the key for long."""
    ahead, behind = replicas(tmp_path, "N[k] P1[~k,x] C1 N[c] | N[z]", "N[k] P1[~k,x]")
    for now_ms in (10**12, 10**13):
        policy = kafka_rules(Policy(now_ms=now_ms))
        compact(
            CompactionRequest(paths=(ahead,), out=None, policy=policy, progress=False, dirty_from=0), InProcess(),
            lambda text: None,
        )  # fmt: skip
    one = told(0, ahead, behind, "--key", "k")
    assert one["proofs"][0]["replicas"] == {ahead: "absent", behind: "present at 0; 1 more on disk"}


def test_what_is_not_replicated_for_sure_decides_nothing(tmp_path: Path, told: Told) -> None:
    """A marker behind the high watermark of an old leader: it goes when that meets the new one, which has written another."""
    old, new = replicas(tmp_path, "N[a] P1[x] C1 | N[z]", "N[a] P1[x] A1 | N[z]")
    write_offsets(tmp_path / "2" / HIGH_WATERMARK, {("t", 0): 4})
    for high, code in ((2, 0), (4, 1)):
        write_offsets(tmp_path / "1" / HIGH_WATERMARK, {("t", 0): high})
        one = told(code, old, new)
        assert (one["partitions"][0]["compared_below"], one["partitions"][0]["problems"]) == (1 if code == 0 else 4, [])
    write_offsets(tmp_path / "1" / HIGH_WATERMARK, {("t", 0): 0})
    one = told(3, old, new)
    assert one["partitions"][0]["problems"] == [
        f"nothing could be compared: only {new} has records below its high watermark"
    ]


def test_what_is_undecided_is_so_by_the_slow_rule_too() -> None:
    """The producer has a marker behind what is trusted, and none between the record and that."""
    chance = np.random.default_rng(7)
    for _ in range(60):
        markers, spans = np.zeros(chance.integers(0, 12), dtype=MARKER), np.zeros(30, dtype=SPAN)
        markers["offset"] = np.sort(chance.choice(30, markers.size, replace=False)) * 2 + 1
        markers["producer_id"] = chance.integers(0, 4, markers.size)
        spans["base"], spans["producer_id"] = np.arange(30) * 2, chance.integers(-1, 4, 30)
        facts = ReplicaFacts(
            name="1", log_start=0, log_end=60, high_watermark=int(chance.integers(0, 61)), lso=60, open_txns=(), aborted=(),
            markers=markers, bare=np.zeros(0, dtype=MARKER), spans=spans, stamps=np.zeros(0, dtype=STAMP),
        )  # fmt: skip
        end = facts.trusted_end

        def slow(producer: int, offset: int, end: int = end, markers: Any = markers) -> bool:
            mine = [int(one["offset"]) for one in markers if one["producer_id"] == producer]
            return offset < end and max(mine, default=-1) >= end and not any(offset < one < end for one in mine)

        expected = [slow(int(one["producer_id"]), int(one["base"])) for one in spans]
        assert facts.undecided(spans["producer_id"], spans["base"]).tolist() == expected
        firsts = [int(one["base"]) for one, yes in zip(spans, expected, strict=True) if yes]
        assert facts.stable_end == min([end, *firsts])


def test_copies_in_object_storage_are_replicas_too(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], told: Told
) -> None:
    first, second = replicas(tmp_path, "N[k] N[b] T[k] N[c] | N[z]", "N[k] N[b] +1 N[c] | N[z]")
    shutil.copytree(tmp_path / "1" / "t-0", tmp_path / "1" / "u-0")
    with s3() as settings:
        urls = [f"s3://{BUCKET}/backup/{number}" for number in (1, 2)]
        for url, root in zip(urls, (first, second), strict=True):
            store = Store.open(url, settings)
            for path in (path for path in Path(root).rglob("*") if path.is_file()):
                with store.writing(str(path.relative_to(root))) as sink:
                    sink.write(path.read_bytes())
        conf = [text for name, value in settings.items() for text in ("--store-conf", f"{name}={value}")]
        one = told(1, *urls, *conf, "--topic", "t")
        (part,) = one["partitions"]
        assert [(finding["class"], finding["replica"]) for finding in part["findings"]] == [
            ("deleted-reappears", urls[1])
        ]
        assert part["findings"][0]["file"] == f"{urls[1]}/t-0/00000000000000000000.log"
        assert told(0, urls[0], first, *conf, "--topic", "t")["verdict"] == "clean"
        assert "there is nothing to compare it with" in str(told(1, *urls, *conf)["partitions"])
        for wrong, said in (
            (urls[0] + "/", "named twice"), (f"s3://{BUCKET}/nothing", f"s3://{BUCKET}/nothing: no such directory"),
            (f"file://{tmp_path}/typo", "no such directory"),
        ):  # fmt: skip
            assert main(["audit", urls[0], wrong, *conf, "--engine", "process"]) == 2
            assert said in capsys.readouterr().err
        assert not (tmp_path / "typo").exists()


def test_a_replica_that_is_behind_is_not_wrong_but_at_risk(tmp_path: Path, told: Told) -> None:
    first, second = replicas(tmp_path, "N[a] T[a] N[b] | N[z]", "N[a]")
    one = told(0, first, second, "--delete-retention-ms", "500", now_ms=1_000)
    assert one["partitions"][0]["findings"] == []
    (risk,) = one["partitions"][0]["forecast"]
    assert (risk["replica"], risk["behind"], risk["unsafe_ms"], risk["stamped"]) == (second, 3, 1500, False)


def spoil(root: str) -> str:
    """One byte of the first segment goes bad: its path."""
    path = Path(root) / "t-0" / "00000000000000000000.log"
    content = bytearray(path.read_bytes())
    content[80] ^= 1
    path.write_bytes(content)
    return str(path)


def test_what_can_not_be_read_is_never_clean(tmp_path: Path, told: Told) -> None:
    first, second, third = replicas(tmp_path, HEALTHY, HEALTHY, HEALTHY)
    path = spoil(second)
    (part,) = told(3, first, second)["partitions"]
    assert (part["replicas"], part["unread"], len(part["problems"])) == ([], [second], 2)
    assert path in part["problems"][0]
    one = told(3, first, second, third)
    (part,) = one["partitions"]
    assert (one["verdict"], [r["replica"] for r in part["replicas"]], part["findings"]) == (
        "incomplete",
        [first, third],
        [],
    )


def test_one_replica_that_can_not_be_read_hides_nothing_of_the_others(tmp_path: Path, told: Told) -> None:
    """They are compared; what is found counts, the unread one is named, and is no source to copy from."""
    first, second, third = replicas(
        tmp_path, "N[k] N[b] T[k] N[c] | N[z]", "N[k] N[b] +1 N[c] | N[z]", "N[k] N[b] T[k] N[c] | N[z]"
    )
    number_brokers(first, second, third)
    path = spoil(third)
    one = told(1, first, second, third)
    (part,) = one["partitions"]
    assert [(finding["class"], finding["replica"]) for finding in part["findings"]] == [("deleted-reappears", second)]
    assert path in part["problems"][0]
    assert third not in str(part["findings"][0]["repair"])
    plans = [step for step in part["findings"][0]["commands"] if step.startswith("printf")]
    assert [json.loads(step.split("'")[3])["partitions"][0]["replicas"] for step in plans] == [
        [0, 2, 1],
        [0, 2],
        [0, 2, 1],
    ]


def test_an_aborted_deletion_that_one_replica_carries_out_is_not_held_against_the_others(
    tmp_path: Path, told: Told
) -> None:
    """The one that was away came back to an emptied ABORT, and read a later COMMIT as the end of both transactions."""
    truth = "P1[~0] T[4] N[1] T[0] P1[~2] P1[~1] A1e1 N[z] P1e1[23] C1e2 N[end]"
    cleaned = replica(tmp_path / "0", "+1 T[4] N[1] +3 +1 N[z] P1e1[23] C1e2 N[end]")
    knows = replica(tmp_path / "1", truth)
    history = History()
    history.append("P1[~0] T[4] N[1] T[0] P1[~2] P1[~1]")
    marker = history.make_batch(parse_term("A1e1"))
    history.append_batch(header_only(marker))
    history.append("N[z] P1e1[23] C1e2 N[end]")
    history.write_partition(tmp_path / "2", "t-0")
    wrong = str(tmp_path / "2")
    number_brokers(cleaned, knows, wrong)
    (part,) = told(1, cleaned, knows, wrong)["partitions"]
    found = [(f["class"], f["replica"], f["key"], f["sure"], f["misleads_readers"]) for f in part["findings"]]
    assert found == [
        ("aborted-as-committed", wrong, "0", "certain", False), ("aborted-as-committed", wrong, "2", "certain", False),
        ("aborted-as-committed", wrong, "1", "certain", True),
    ]  # fmt: skip
    serious = part["findings"][-1]
    assert (serious["offset"], serious["marker"]) == (5, 6)
    assert serious["served"] == {
        cleaned: "present at 2", knows: "present at 2; the record at 5 is aborted here",
        wrong: "deleted at 5; the record at 5 is committed here",
    }  # fmt: skip
    assert serious["repair"][1].endswith(f"which must be {cleaned} or {knows}")
    plans = [step for step in serious["commands"] if step.startswith("printf")]
    assert [json.loads(step.split("'")[3])["partitions"][0]["replicas"] for step in plans] == [
        [0, 1, 2],
        [0, 1],
        [0, 1, 2],
    ]


def test_findings_of_one_cause_are_one_group(tmp_path: Path, capsys: pytest.CaptureFixture[str], told: Told) -> None:
    """Twenty keys of one transaction whose COMMIT never came, all deleted by now: no reader is misled, and one line says so."""
    keys = ",".join(f"k{n}" for n in range(20))
    deleted = ",".join(f"~k{n}" for n in range(20))
    first, second = replicas(
        tmp_path, f"P1[{keys}] C1 P1[j] A1 N[{deleted}] | N[z]", f"P1[{keys}] +1 P1[j] A1 N[{deleted}] | N[z]"
    )
    (part,) = told(1, first, second)["partitions"]
    assert {(f["class"], f["replica"], f["misleads_readers"]) for f in part["findings"]} == {
        ("committed-hidden", second, False)
    }
    assert len(part["findings"]) == 20
    (group,) = part["groups"]
    assert (group["class"], group["replica"], group["producer_id"], group["marker"], group["count"]) == (
        "committed-hidden", second, 1, 20, 20,
    )  # fmt: skip
    assert group["examples"][0]["served"] == {
        first: "deleted at 23; the record at 0 is committed here", second: "deleted at 23; the record at 0 is aborted here",
    }  # fmt: skip
    assert "no reader is misled" in group["why"]
    assert main(["audit", first, second, "--engine", "process"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if "committed-hidden on" in line and "what to do" not in line] == [
        f"  committed-hidden on {second}, producer 1: 20 findings (certain, every consumer, no reader is misled)"
    ]
    assert "    and 17 more; --output json has all" in lines


def test_where_the_evidence_does_not_decide_both_readings_are_told(tmp_path: Path, told: Told) -> None:
    """A committed value that a lost tombstone deleted, or an aborted one: of its marker only the bare header is left."""
    others = "+1 N[x] +1 N[y] P1e1[g] C1e2 N[c] | N[z]"
    first, second = replica(tmp_path / "1", others), replica(tmp_path / "2", others)
    history = History()
    history.append("P1[k] N[x]")
    history.append_batch(header_only(history.make_batch(parse_term("C1e1"))))
    history.append("N[y] P1e1[g] C1e2 N[c] | N[z]")
    history.write_partition(tmp_path / "3", "t-0")
    (part,) = told(1, first, second, str(tmp_path / "3"))["partitions"]
    (finding,) = part["findings"]
    assert (finding["class"], finding["or_class"], finding["replica"], finding["or_replica"], finding["sure"]) == (
        "aborted-as-committed", "deleted-reappears", str(tmp_path / "3"), str(tmp_path / "3"), "undecided",
    )  # fmt: skip
    assert finding["why"].startswith("one of these two: ")


@pytest.mark.parametrize("option", ["--report", "--findings"])
def test_a_file_that_can_not_be_written_is_refused_before_anything_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pair: tuple[str, str], option: str
) -> None:
    first, second = pair
    spoil(second)
    for path, said in ((tmp_path / "none" / "page", "is not a directory"), (tmp_path, "is a directory")):
        assert main(["audit", first, second, "--engine", "process", option, str(path)]) == 2
        assert said in capsys.readouterr().err


def test_a_partition_of_one_replica_only_is_not_covered(tmp_path: Path, told: Told, pair: tuple[str, str]) -> None:
    first, second = pair
    shutil.copytree(tmp_path / "1" / "t-0", tmp_path / "1" / "u-0")
    one = told(3, first, second)
    assert one["verdict"] == "incomplete"
    assert "only" in next(part for part in one["partitions"] if part["partition"] == "u-0")["problems"][0]
    assert told(0, first, second, "--topic", "t")["verdict"] == "clean"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["{one}"], "at least two replicas"),
        (["{one}", "{one}"], "named twice"),
        (["{one}", "{tmp}/none"], "no such directory"),
        (["{one}", "{two}", "--topic", "other"], "no partition of topic other"),
        ([], "name the log directories of the replicas, or a cluster"),
        (["{one}", "{two}", "--bootstrap", "h:1"], "name the log directories of the replicas, or a cluster"),
        (["--bootstrap", "nowhere"], "expected HOST:PORT"),
        (["--bootstrap", "h:1", "--kafka-conf", "security.protocol=X"], "known are PLAINTEXT"),
    ],
)
def test_what_is_wrong_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], pair: tuple[str, str], arguments: list[str], said: str
) -> None:
    one, two = pair
    assert main(["audit", *(text.format(one=one, two=two, tmp=tmp_path) for text in arguments)]) == 2
    assert said in capsys.readouterr().err


NOW_MS = 1_795_000_000_000


def test_a_clean_audit_is_evidence_as_text_as_json_and_as_a_page(
    pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], told: Told
) -> None:
    words = [*pair, "--report", str(tmp_path / "audit.html")]
    document = told(0, *words)
    command = f"headstone audit {' '.join(words)} --engine process --output json --now-ms {NOW_MS}"
    wanted = {
        "verdict": "clean", "time_ms": NOW_MS, "time": "2026-11-18 11:06:40 UTC", "version": __version__,
        "command": command, "sources": list(pair), "left_out": [],
        "compared": {"replicas": list(pair), "partitions": 1, "keys": 5, "records": 14},
    }  # fmt: skip
    assert {name: document[name] for name in wanted} == wanted
    page = (tmp_path / "audit.html").read_text()
    text_of = (
        f"t-0: no findings; 5 keys compared below offset 8: {pair[0]} [0, 8) 7 records, {pair[1]} [0, 8) 7 records"
    )
    assert main(["audit", *words, "--engine", "process", "--now-ms", str(NOW_MS)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "clean: 1 partition, no findings",
        f"audited at 2026-11-18 11:06:40 UTC by headstone {__version__}: "
        f"headstone audit {' '.join(words)} --engine process --now-ms {NOW_MS}",
        f"replicas: {pair[0]}, {pair[1]} (of {pair[0]}, {pair[1]})",
        "compared: 5 keys, 14 records of all replicas",
        "left out: nothing",
        text_of,
    ]
    for evidence in (
        "no findings", "2026-11-18 11:06:40 UTC", f"headstone {__version__}", command, *pair, "5 keys, 14 records",
        "<th>left out</th><td>nothing</td>", "<td>t-0</td><td>none</td><td>5 keys below offset 8</td>", "[0, 8), LSO 8",
    ):  # fmt: skip
        assert evidence in page


def test_what_nobody_looked_at_is_left_out_by_name(tmp_path: Path, told: Told) -> None:
    for root in (tmp_path / "1", tmp_path / "2"):
        for name in ("t-0", "u-0", "__cluster_metadata-0"):
            replica(root, "N[a] N[] N[b]" if name == "t-0" else "N[a]", name=name)
    document = told(0, str(tmp_path / "1"), str(tmp_path / "2"), "--topic", "t")
    assert document["left_out"][:2] == ["topic __cluster_metadata: the cluster's own", "topic u: not asked for"]
    assert [one["partition"] for one in document["partitions"]] == ["t-0"]


UNSAID = (
    "fewer than two replicas can say (written again where the others have not got to, in an open transaction, or before a "
    "log's start)"
)


def test_logs_of_which_nothing_could_be_set_against_each_other_are_not_clean(tmp_path: Path, told: Told) -> None:
    """No offset in common, and one has written every key again behind the other's end: so may strangers have."""
    roots = replicas(tmp_path, "+4 N[a] N[b] N[c]", "N[a] N[b] N[c]")
    document = told(3, *roots)
    (partition,) = document["partitions"]
    assert (document["verdict"], document["compared"]["keys"], partition["keys_unsaid"]) == ("incomplete", 0, 3)
    assert document["left_out"] == [f"3 keys: {UNSAID}"]
    nothing = (
        "nothing of it could be compared: no other replica has a record at the same offset, or can say something about the "
        "same key; if it only lags, audit again when it has caught up"
    )
    assert partition["problems"] == [f"{root}: {nothing}" for root in roots]


def test_a_stranger_beside_two_that_agree_was_not_compared(tmp_path: Path, told: Told) -> None:
    later = "+4 N[a] N[b] N[c]"
    roots = replicas(tmp_path, later, later, "N[a] N[b] N[c]")
    document = told(3, *roots)
    (partition,) = document["partitions"]
    assert (document["compared"]["keys"], document["left_out"]) == (3, [])
    assert [problem.split(": ")[:2] for problem in partition["problems"]] == [
        [roots[2], "nothing of it could be compared"]
    ]


def test_keys_that_are_written_all_the_time_are_left_out_and_leave_a_healthy_log_clean(
    tmp_path: Path, told: Told
) -> None:
    """One lags a little: whatever they hold in common was compared by offset."""
    roots = replicas(tmp_path, "N[a] N[b] N[c] | N[a] N[b]", "N[a] N[b] N[c]")
    document = told(0, *roots)
    assert (document["compared"]["keys"], document["left_out"]) == (1, [f"2 keys: {UNSAID}"])


def test_secrets_of_the_command_are_not_evidence(pair: tuple[str, str], told: Told) -> None:
    secrets = ["--store-conf", "secret_access_key=hunter2", "--store-conf", "token=env:TOKEN", "--kafka-conf", "x=y"]
    document = told(0, *pair, *secrets)
    assert "--store-conf 'secret_access_key=***' --store-conf token=env:TOKEN --kafka-conf x=y" in document["command"]


IDS = ("AAAAAAAAQACAAAAAAAAAAQ", "AAAAAAAAQACAAAAAAAAAAg")


@pytest.mark.parametrize("what", ["topic", "cluster"])
def test_other_ids_are_different_logs_whatever_is_in_them(
    what: str, pair: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], told: Told
) -> None:
    for root, number in zip(pair, IDS, strict=True):
        replica(Path(root), "N[x]", name="u-0")
        if what == "topic":
            (Path(root) / "t-0" / PARTITION_METADATA).write_text(f"version: 0\ntopic_id: {number}\n")
        else:
            (Path(root) / META_PROPERTIES).write_text(f"version=1\ncluster.id={number}\nnode.id=1\n")
            (Path(root) / "replication-offset-checkpoint").write_text("0\n2\nt 0 8\nu 0 1\n")
    document = told(2, *pair, "--report", str(tmp_path / "audit.html"))
    assert document["verdict"] == "different-logs"
    different = {one["partition"]: one["different_logs"] for one in document["partitions"]}
    why = {"topic": "different topics of the same name: ", "cluster": "they are of different clusters: "}[what]
    assert different["t-0"].startswith(why)
    assert all(number in different["t-0"] for number in IDS)
    assert (different["u-0"] is None) == (what == "topic")
    assert all(one["findings"] == [] and one["problems"] == [] for one in document["partitions"])
    assert main(["audit", *pair, "--engine", "process"]) == 2
    first, second, *rest = capsys.readouterr().out.splitlines()
    assert first.startswith("different-logs: 2 partitions")
    assert second.startswith(f"t-0: these are different logs, not replicas of one: {why}")
    page = (tmp_path / "audit.html").read_text()
    assert why in page
    uncovered = ["t-0: nothing was compared", "u-0: nothing was compared"][: 1 if what == "topic" else 2]
    assert document["left_out"] == uncovered
    compared = {"topic": "1 key, 2 records of all replicas", "cluster": "nothing"}[what]
    assert {f"compared: {compared}", f"left out: {'; '.join(uncovered)}"} < set(rest)
    assert f"<th>compared</th><td>{compared}</td>" in page


def samples(root: Path, *seeds: int) -> list[str]:
    roots = []
    for number, seed in enumerate(seeds):
        settings = SampleSettings(topic="t", records=1500, keys=300, tombstones=0.1, segment_bytes=50_000, seed=seed)
        roots.append(str(write_sample(root / str(number), settings)[0]))
        (Path(roots[-1]) / "t-0" / PARTITION_METADATA).unlink()
    return roots


def test_contents_that_differ_nearly_everywhere_are_no_findings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], told: Told
) -> None:
    roots = samples(tmp_path, 1, 1, 2)
    document = told(2, *roots)
    (partition,) = document["partitions"]
    assert (document["verdict"], partition["findings"], partition["problems"]) == ("different-logs", [], [])
    assert partition["different_logs"].startswith("their contents differ nearly everywhere: at 1,")
    assert f"{roots[0]} and {roots[2]} have different records" in partition["different_logs"]
    assert main(["audit", *roots, "--engine", "process"]) == 2
    said = capsys.readouterr().out
    assert not [word for word in ("leading", "rebuild", "leader election") if word in said]


def test_findings_elsewhere_count_more(tmp_path: Path, told: Told) -> None:
    roots = samples(tmp_path, 1, 2)
    replica(Path(roots[0]), "N[k] N[b] T[k] N[c] | N[z]", name="u-0")
    replica(Path(roots[1]), "N[k] N[b] +1 N[c] | N[z]", name="u-0")
    for root in roots:
        (Path(root) / "replication-offset-checkpoint").unlink(missing_ok=True)
    document = told(1, *roots)
    assert document["verdict"] == "diverged"
    assert {one["partition"]: len(one["findings"]) for one in document["partitions"]} == {"t-0": 0, "u-0": 1}


def test_a_diverged_tail_is_a_finding_and_no_other_log(tmp_path: Path, told: Told) -> None:
    """As after an unclean election: the same log up to some offset."""
    keys = random.Random(1).choices("abcdefgh", k=40)
    shared = " ".join(f"N[{key}]" for key in keys[:20])
    first, second = replicas(
        tmp_path,
        f"{shared} {' '.join(f'N[{key}]' for key in keys[20:])} | N[z]",
        f"{shared} {' '.join(f'N[{key}x]' for key in keys[20:])} | N[z]",
    )
    document = told(1, first, second)
    assert (document["verdict"], document["partitions"][0]["different_logs"]) == ("diverged", None)


@pytest.mark.parametrize(
    ("common", "differing", "different"),
    [
        (COMMON_MIN, COMMON_MIN, True), (COMMON_MIN - 1, COMMON_MIN - 1, False), (1000, 900, True), (1000, 899, False),
        (0, 0, False),
    ],
)  # fmt: skip
def test_how_much_is_nearly_everywhere(common: int, differing: int, different: bool) -> None:
    assert (different_contents({("a", "b"): (1000, 0), ("a", "c"): (common, differing)}) is not None) == different


def test_what_nobody_has_told_is_no_difference() -> None:
    assert different_ids({"a": None, "b": "x"}, {"a": "t", "b": None, "c": "t"}) is None
    assert different_ids({"a": "x", "b": "y"}, {}) == (
        "they are of different clusters: a has cluster.id x, b has cluster.id y"
    )


def test_a_replica_whose_checkpoint_is_spoilt_hides_no_other_partition(
    pair: tuple[str, str], tmp_path: Path, told: Told
) -> None:
    third = str(tmp_path / "3")
    shutil.copytree(pair[0], third)
    (Path(third) / "cleaner-offset-checkpoint").write_text("nonsense")
    document = told(3, *pair, third)
    assert (document["verdict"], document["partitions"][0]["unread"]) == ("incomplete", [third])
    assert document["partitions"][0]["keys"] == 5
    assert document["left_out"] == [f"t-0 on {third}: not read"]
