"""README and every page of docs/ are pasted as they are, in order, into an empty directory; what they show is what comes.

README is pasted into a shell, on Spark, as a newcomer's. The other pages run in this process. Blocks that need brokers are
pasted by tests/brokers/test_docs.py. What is not run is in `NOT_RUN`, with the reason.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from headstone.cli.main import main
from tests.docs.blocks import Block, blocks, commands, differs
from tests.docs.pasting import BROKERS, IN_PROCESS, POSTGRESQL, ROOT, Newcomer, fresh_environment

PAGES = {
    path.relative_to(ROOT).as_posix(): list(blocks(path, path.relative_to(ROOT).as_posix()))
    for path in sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
}
DRAWING, BENCHMARK = "a drawing, a list or a formula", "a benchmark: minutes, and other figures on every machine"
MINUTES = "minutes: tests/sim and campaigns run more of it"
OUTAGE = "an outage: tests/brokers/test_guard_loop.py and test_readmission.py make it"
PLAYED = "three terminals; tests/brokers/test_clusters.py and test_guard_loop.py run what they are told"
TOOLS, PHRASE = "Kafka's own tools", "a part of a call, in the middle of a sentence"
PAGES_NOT_RUN = {
    "CONTRIBUTING.md": DRAWING,
    "docs/ARCHITECTURE.md": DRAWING,
    "docs/performance.md": BENCHMARK,
    "docs/protocol-cost.md": BENCHMARK,
    "docs/rfcs/0001-coordinated-compaction.md": DRAWING,
    "docs/rfcs/0002-lake.md": DRAWING,
    "docs/rfcs/0003-guard.md": DRAWING,
}
NOT_RUN: Mapping[tuple[str, str], str] = {
    ("README.md", "make demo     # three replicas of a sample topic, compacted on local Spark: about half a minute"):
        "the repository's own commands: CI runs the one, tests/sim/test_demo.py the other",
    ("README.md", "before         0    1    2    3    4    5     6    7    8      9     10      offset"): DRAWING,
    ("README.md", "pip install '.[spark]'"): "installs; the tests run in what was installed",
    ("docs/audit.md", "diverged: 4 partitions, 1 finding"):
        "no verb makes corrupt replicas; tests/divergence/test_seeded.py compares such answers",
    ("docs/audit.md", "clean: 1 partition, no findings"): "the same answer is compared further up, with its own date",
    ("docs/compact.md", "headstone compact /kafka/logs --out /kafka/compacted --master spark://host:7077 "
                        "--spark-conf spark.executor.memory=2g"): "a Spark cluster: tests/clusters runs such commands",
    (
        "docs/compact.md",
        "headstone compact /kafka/logs --out /kafka/compacted --master spark://host:7077 "
        "--spark-conf spark.pyspark.python=/opt/headstone/bin/python",
    ): "a Spark cluster: tests/clusters runs such commands",
    ("docs/guard.md", "python -m benchmarks.hold"): BENCHMARK,
    ("docs/guard.md", "python -m campaigns.guarded_outages"): "a campaign: many minutes",
    ("docs/guard.md", "kafka-configs.sh --bootstrap-server HOSTS --entity-type topics --entity-name orders --describe"): TOOLS,
    ("docs/guard.md", "kafka-configs.sh --bootstrap-server HOSTS --entity-type brokers --entity-default --alter \\"): TOOLS,
    ("docs/guard.md", "cluster 4L6g3nShT-eMCtK--X86sw: looked just now"): OUTAGE,
    ("docs/guard.md", "orders-0 on broker 3: wrong: deleted-reappears of key alice at offset 0 on broker 3: others have "
                      "cleaned it away, which only a tombstone behind 0 allows; that never came here"): OUTAGE,
    ("docs/guard.md", "2026-11-16 10:04:11 UTC done: hold topic orders (behind: partition 0: broker 3), to be in "
                      "effect by 2026-11-16 22:03:05 UTC; found min.cleanable.dirty.ratio=0.2, "
                      "min.compaction.lag.ms=(not set), max.compaction.lag.ms=(not set)"): OUTAGE,
    ("docs/guard.md", "2026-11-16 10:04:11 UTC all is well: looked at 12 topics with 96 partitions (96 fine) on 3 brokers in "
                      "0.4 s; nothing held"): "tests/cli/test_guard.py compares such a line",
    ("docs/guard.md", "2026-11-16 10:04:11 UTC this guard did not look: ops-1-4211-9f3c leads; its journal of 2026-11-16 "
                      "10:04:02 UTC has 12 topics with 96 partitions (95 fine, 1 held); 1 held: orders"):
        "tests/cli/test_guard.py compares such a line",
    ("docs/guard.md", "$ make kafka"): PLAYED,
    ("docs/guard.md", "$ BROKERS=$(.venv/bin/python -m testbed bootstrap)"): PLAYED,
    ("docs/guard.md", "$ .venv/bin/headstone guard status --bootstrap $BROKERS"): PLAYED,
    ("docs/guard.md", "2026-11-18 20:02:13 UTC orders-0: watched: broker 3 behind since 2026-11-18 20:02:13 UTC, first unsafe "
                      "removal in 6 min 14 s"): PLAYED,
    ("docs/guard.md", "sqlite3 ~/.local/state/headstone/guard/*.sqlite \"SELECT datetime(began_ms/1000,'unixepoch'), resource, "
                      "old, new, reason, outcome FROM changes\""): "needs sqlite3; tests/guard/test_journal.py reads the table",
    ("docs/guard.md", "$ openssl rand -hex 32 > /etc/headstone/token && chmod 600 /etc/headstone/token          "
                      "# the same file everywhere"): "several machines, /etc; tests/brokers/test_agent.py",
    ("docs/guard.md", "$ headstone guard --bootstrap kafka-1:9093 --kafka-conf security.protocol=SASL_SSL --kafka-conf "
                      "sasl.mechanism=OAUTHBEARER \\"): "an identity provider; tests/brokers/test_security.py",
    ("docs/guard.md", "groups:"): "rules for Prometheus; tests/guard compares their metrics",
    ("docs/inspect.md", "orders-0"): "of a directory with a damaged log; tests/cli/test_partial.py makes one",
    ("docs/lake.md", "kafka-storage format -t CLUSTER_ID -c server.properties                       "
                     "# each new broker, as for any new cluster"): TOOLS + "; tests/brokers/test_clusters.py does this",
    ("docs/lake.md", "headstone lake ingest mylake /var/lib/kafka/data --topic orders      "
                     "# log directories of a stopped broker, or copies"): "a broker's own directory",
    ("docs/lake.md", "jq -cjS 'del(.sha256)' proof.json | sha256sum"): "needs jq; tests/lake/test_proof.py checks the seal",
    ("docs/lake.md", "headstone lake init postgresql://user@host/lake --objects s3://bucket/prefix "
                     "--store-conf region=eu-central-1"): "made already, further up on the page",
    ("docs/python.md", "spark-submit --master spark://host:7077 compact_job.py s3://backups/broker-1 s3://backups/compacted "
                       "region=eu-west-1"): "a Spark cluster; tests/clusters/test_submit.py submits this job",
    ("docs/simulate.md", "headstone simulate --seeds 500 --rules kafka            # all four"): MINUTES,
    ("docs/simulate.md", "$ headstone reproduce --kafka-home ~/kafka_2.13-4.3.1"):
        "an unpacked release of Kafka; tests/brokers/test_facts.py plays the stories",
    ("docs/sql.md", '.schema("topic string, partition int, offset long, key binary")'): PHRASE,
    ("docs/sql.md", '.option("store.endpoint", "https://minio:9000").load("s3://backups/*/orders-*")'): PHRASE,
}  # fmt: skip
IN_SHELL = ("README.md",)
PAGE = """Text

    $ echo 8.3 MB in 2.8 s
    8.3 MB in 9 s
    $ false    # exit code 1
    $ printf 'a\\nb c\\nd'
    a
      b
    c ...

Text

```python
print(1)
```
"""


def runs_here(block: Block) -> bool:
    return reason_not_to_run(block) is None and BROKERS not in block.text


def reason_not_to_run(block: Block) -> str | None:
    return PAGES_NOT_RUN.get(block.page) or NOT_RUN.get((block.page, block.first))


def on_brokers(page: str) -> list[Block]:
    """For tests/brokers/test_docs.py."""
    return [b for b in PAGES[page] if b.has_prompts and BROKERS in b.text and reason_not_to_run(b) is None]


def pasted(page: str) -> list[Block]:
    return [block for block in PAGES[page] if block.has_prompts and runs_here(block)]


def newcomer(home: Path, request: pytest.FixtureRequest, page: str) -> Newcomer:
    """With the servers that the page names, if it names any."""
    text = "\n".join(block.text for block in PAGES[page] if runs_here(block))
    environment, addresses = fresh_environment(home), {}
    if "s3://" in text:
        environment |= request.getfixturevalue("object_storage")
    if POSTGRESQL in text:
        addresses[POSTGRESQL] = request.getfixturevalue("postgres_url")
    directory = home / "empty"
    directory.mkdir()
    return Newcomer(directory=directory, addresses=addresses, environment=environment)


def test_every_block_is_run_or_has_a_reason_not_to_be() -> None:
    known = {"python", "toml"}
    left = [
        f"{block.page}:{block.line}: {block.first}"
        for page in PAGES.values()
        for block in page
        if not (block.has_prompts or block.language in known or reason_not_to_run(block))
    ]
    assert left == []
    firsts = {(block.page, block.first) for page in PAGES.values() for block in page}
    assert set(NOT_RUN) - firsts == set(), "what is not there needs no reason"
    assert set(PAGES_NOT_RUN) - set(PAGES) == set()


@pytest.mark.parametrize("page", [page for page in PAGES if pasted(page) and page not in IN_SHELL])
def test_a_page_is_true(
    page: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its programs run behind its commands, each in a process that knows no virtual environment."""
    who = newcomer(tmp_path / "home", request, page)
    for name, value in who.environment.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "headstone").mkdir()
    (tmp_path / "headstone" / "config.toml").write_text(IN_PROCESS)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(who.directory)
    wrong = [text for block in pasted(page) for text in who.paste(block, in_process=True)]
    for block in PAGES[page]:
        if block.language == "python" and runs_here(block):
            code, printed = who.run_program(block.text)
            wrong += [f"{page}:{block.line}: the program ended with {code}:\n{printed}"] if code else []
    assert not wrong, "\n\n".join(wrong)


@pytest.mark.parametrize("page", IN_SHELL)
def test_a_page_is_true_in_a_newcomers_shell(page: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """In order, the programs too: nothing of this process, or of a virtual environment, is there."""
    who = newcomer(tmp_path / "home", request, page)
    wrong = []
    for block in PAGES[page]:
        if block in pasted(page):
            wrong += who.paste(block, in_process=False)
        elif block.language == "python" and runs_here(block):
            code, printed = who.run_program(block.text)
            wrong += [f"{page}:{block.line}: exit code {code}:\n{printed}"] if code else []
    assert not wrong, "\n\n".join(wrong)


def test_a_configuration_on_a_page_is_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files = [
        block for page in PAGES.values() for block in page if block.language == "toml" and not reason_not_to_run(block)
    ]
    assert files
    for number, block in enumerate(files):
        path = tmp_path / f"{number}.toml"
        path.write_text(block.text)
        assert main(["synth", str(tmp_path / f"sample-{number}"), "--records", "10", "--config", str(path)]) == 0
    assert "error" not in capsys.readouterr().err


def test_what_is_shown_is_compared(tmp_path: Path) -> None:
    """The harness itself: a page that shows something else is not true."""
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    first, program = blocks(page, "page.md")
    assert (program.language, program.text, program.line) == ("python", "print(1)", 14)
    assert [(command.text, command.shown, command.exit_code) for command in commands(first)] == [
        ("echo 8.3 MB in 2.8 s", "8.3 MB in 9 s", 0),
        ("false    # exit code 1", "", 1),
        ("printf 'a\\nb c\\nd'", "a\n  b\nc ...", 0),
    ]
    who = Newcomer(directory=tmp_path, environment=dict(os.environ))
    assert who.paste(first, in_process=False) == []
    assert differs("a ... c", "a b c") is None
    assert differs("8.4 MB", "8.3 MB") is not None
    assert differs("a", "a b") is not None
    untrue = tmp_path / "untrue.md"
    untrue.write_text("    $ echo a\n    b\n    $ false\n")
    assert len(who.paste(next(blocks(untrue, "untrue.md")), in_process=False)) == 2
