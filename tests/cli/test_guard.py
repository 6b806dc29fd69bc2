"""`headstone guard` where there is no cluster: what it refuses, what it still knows, how it ends."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from headstone.brokers.ports import HOST, free_ports
from headstone.cli.guard_agents import agents_request
from headstone.cli.main import main, parser
from headstone.coordination.danger import Margins
from headstone.coordination.guard_values import HOLD, Hold, Memory, State, Status
from headstone.errors import UsageError
from headstone.guard.agents.listener import listening
from headstone.guard.assembly import left_held
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.journal_values import Change, KeptAlarm, RememberedTopic
from headstone.guard.ledger.temporary_changes import TemporaryChange, keep_change
from tests.cli.scenes import answer
from tests.guard import scripted

FOUND = tuple((name, None) for name, _ in HOLD)
HELD = Memory(
    hold=Hold(asked_ms=1_700_000_000_000, found=FOUND, seen_ms=1, confirmed=(1, 2), confirmed_ms=1_700_000_001_000)
)


CHANGE = Change(
    resource="topic orders", topic="orders", old=FOUND, new=HOLD, reason="behind: partition 0: broker 3", evidence="",
    began_ms=1,
)  # fmt: skip
ALARM = KeptAlarm(kind="a change was refused", topic="orders", detail="why")


@pytest.fixture
def nowhere() -> str:
    (port,) = free_ports(1)
    return f"{HOST}:{port}"


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Of a guard that held a topic and died."""
    path = tmp_path / "journal.sqlite"
    statuses = (
        Status(partition=0, state=State.HELD, blockers=(3,), since_ms=1_700_000_000_000, unsafe_ms=1_700_000_900_000),
    )
    with Journal.open(path, cluster_id="dead-cluster") as made:
        kept = RememberedTopic(memory=HELD, statuses=statuses, looked_ms=1_700_000_002_000)
        made.remember_all({"orders": kept}, holder=None, now_ms=0)
        made.end(made.begin(CHANGE), "done")
        made.set_alarms("orders", [ALARM], now_ms=5)
    return path


@pytest.mark.parametrize("words", [["--once"], ["--once", "--apply"], ["status"], ["release", "--apply"]])
def test_a_cluster_that_does_not_answer_is_named_and_nothing_is_begun(
    words: list[str], nowhere: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert main(["guard", *words, "--bootstrap", nowhere]) == 3
    assert nowhere in capsys.readouterr().err
    assert not (tmp_path / "state").exists()


def test_without_the_cluster_status_tells_what_the_journal_knows(
    nowhere: str, journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["guard", "status", "--bootstrap", nowhere, "--journal", str(journal)]
    assert main(words) == 1
    said = capsys.readouterr().out.splitlines()
    assert said[0].startswith("cluster dead-cluster: by the journal of 2023-11-14 22:13:22 UTC, ")
    assert said[1] == "no guard is running"
    assert "  why: behind: partition 0: broker 3" in said
    assert said[-1].startswith("ALARM orders: a change was refused: why; remove the named cause")
    document = answer(capsys, *words, code=1)
    seen = (document["fresh"], document["looked_ms"], document["partitions"])
    assert seen == (False, 1_700_000_002_000, {"unknown": 1})
    assert document["topics"][0]["held"]["brokers"] == [1, 2]


def test_one_look_tells_as_json_why_a_topic_is_held(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "journal.sqlite"
    with Journal.open(path, cluster_id="scripted") as journal:
        journal.remember("orders", HELD)
        journal.end(journal.begin(CHANGE), "done")
    held = {"cleanup.policy": "compact", **{name: value for name, value in HOLD if value is not None}}
    with scripted.running(scripted.Model(topics={"orders": 1}, configs={"orders": held})) as bootstrap:
        where = ["--bootstrap", bootstrap, "--journal", path]
        live = answer(capsys, "guard", *where, "--once")
        status = answer(capsys, "guard", "status", *where)
    (topic,) = live["topics"]
    assert (topic["topic"], topic["held"]["reason"]) == ("orders", "behind: partition 0: broker 3")
    assert (list(live), live["agents"]) == (list(status), None)


def test_one_look_says_when_and_that_all_is_well_and_one_that_did_not_see_all_is_not_done(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = scripted.Model(topics={"orders": 2, "logs": 1}, configs={"orders": {"cleanup.policy": "compact"}})
    with scripted.running(model) as bootstrap:
        words = f"guard --bootstrap {bootstrap} --journal {tmp_path / 'j.sqlite'} --once --poll-ms 1000".split()
        assert main(words) == 0
        (line,) = capsys.readouterr().out.splitlines()
        assert re.fullmatch(
            r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC all is well: looked at 1 topic with 2 partitions \(2 fine\) on 3 brokers in "
            r"\d+\.\d s; nothing held", line,
        )  # fmt: skip
        model.silent = {3}
        assert main(words) == 3
        told = capsys.readouterr().out.splitlines()
        assert re.fullmatch(r"\S+ \S+ UTC broker 3: broker \S+ does not answer: it said nothing for 5 s", told[0])
        assert "all is well" not in told[-1]


def lead_elsewhere(path: Path, *, alarm: bool = False) -> None:
    """Another guard has looked, and holds a topic."""
    now_ms = time.time_ns() // 1_000_000
    with Journal.open(path, cluster_id=None) as journal:
        journal.lead("daemon-1", now_ms=now_ms, lease_ms=600_000, applies=True)
        held = replace(journal.remembered("orders"), memory=HELD)
        journal.remember_all({"orders": held}, holder="daemon-1", now_ms=now_ms, looked_ms=now_ms)
        if alarm:
            journal.set_alarms("orders", [ALARM], now_ms=now_ms)


def test_one_look_beside_a_guard_that_leads_says_that_it_did_not_look(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "j.sqlite"
    model = scripted.Model(topics={"orders": 2}, configs={"orders": {"cleanup.policy": "compact"}})
    with scripted.running(model) as bootstrap:
        words = ["guard", "--bootstrap", bootstrap, "--journal", str(path), "--once"]
        assert main(words) == 0
        lead_elsewhere(path)
        capsys.readouterr()
        assert main(words) == 0
        first, last = capsys.readouterr().out.splitlines()
        assert re.fullmatch(r"\S+ \S+ UTC standing by: daemon-1 leads; this guard takes over if .*", first)
        assert re.fullmatch(
            r"\S+ \S+ UTC this guard did not look: daemon-1 leads; its journal of \S+ \S+ UTC has 1 topic with 2 partitions "
            r"\(2 fine\); 1 held: orders", last,
        )  # fmt: skip
        document = answer(capsys, *words)
        assert document["leader"]["guard"] == "daemon-1"
        assert [(topic["topic"], topic["held"]["brokers"]) for topic in document["topics"]] == [("orders", [1, 2])]
        assert document["problems"][0].startswith("this guard did not look: daemon-1 leads")
        lead_elsewhere(path, alarm=True)
        assert main(words) == 1
        assert capsys.readouterr().out.splitlines()[-1].endswith("1 held: orders, 1 alarm")


def test_what_a_guard_says_of_readmissions_has_the_time_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "j.sqlite"
    model = scripted.Model(
        topics={"orders": 1}, configs={"orders": {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.7"}}
    )
    temporary = TemporaryChange(
        topic="orders", old=(("min.cleanable.dirty.ratio", None),), new=(("min.cleanable.dirty.ratio", "1.0"),)
    )
    with Journal.open(path, cluster_id="scripted") as journal:
        keep_change(journal, temporary)
    with scripted.running(model) as bootstrap:
        assert main(["guard", "--bootstrap", bootstrap, "--journal", str(path), "--once", "--apply"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.endswith("was changed by somebody else meanwhile and stays 0.7") for line in lines)
    assert [line for line in lines if not re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d UTC ", line)] == []


def test_what_an_earlier_run_left_held_and_nobody_watches_now_is_known(journal: Path) -> None:
    with Journal.open(journal, cluster_id=None) as opened:
        assert [left_held(opened, watched) for watched in ((), ("orders",), ("users",))] == [[], [], ["orders"]]


def test_margins_are_those_of_the_decision_unless_told_otherwise() -> None:
    from headstone.cli.guard_watch import _settings

    assert _settings(parser("guard").parse_args(["guard", "--bootstrap", "kafka:9092"])).margins == Margins()
    words = "guard --poll-ms 1 --metadata-age-ms 2 --clock-skew-ms 3 --effect-ms 4 --pass-start-ms 5 --slack-share 0.25"
    told = _settings(parser("guard").parse_args([*words.split(), "--robot-ms", "6", "--allow", "readmission"]))
    assert told.margins == Margins(
        poll_ms=1, metadata_age_ms=2, skew_ms=3, effect_ms=4, pass_start_ms=5, slack_share=0.25, robot_ms=6
    )
    assert (told.allowed.readmission, told.allowed.cluster_default, told.applies) == (True, False, False)
    assert parser("guard").parse_args(["guard", "--metrics", "[::1]:0"]).metrics == ("::1", 0)


@pytest.mark.parametrize(
    "words",
    [
        "--bootstrap kafka-1:9092 --topic orders --apply release",
        "--bootstrap kafka-1:9092 release --topic orders --apply",
        "release --bootstrap kafka-1:9092 --topic orders --apply",
    ],
)
def test_options_count_before_the_action_and_behind_it(words: str) -> None:
    arguments = parser("guard").parse_args(["guard", *words.split()])
    assert (arguments.bootstrap, arguments.topic, arguments.apply) == ("kafka-1:9092", ["orders"], True)
    assert parser("guard").parse_args(["guard", "release", "--bootstrap", "kafka-1:9092"]).apply is False


WATCH = """
import socket, sys
from headstone.cli import guard_watch
from headstone.api.stopping import run_heard
from headstone.cluster.connection import Connection, Host, wire_settings
from headstone.cluster.wire import BrokerConnection
from headstone.guard.ledger.journal import Journal
from headstone.guard.loop.rounds import GuardSettings
from headstone.guard.loop.watcher import Watcher
from tests.guard.world import CLUSTER_ID, ClusterTwin
from pathlib import Path

twin, silent = ClusterTwin(), socket.create_server(("127.0.0.1", 0))

def look(topics):
    host = Host("127.0.0.1", silent.getsockname()[1])
    with BrokerConnection(host, wire_settings(Connection(hosts=[host])), seconds_max=600) as broker:
        print("looking", flush=True)
        return broker.metadata([])

def work():
    with Journal.open(Path(sys.argv[1]), cluster_id=CLUSTER_ID) as journal:
        watcher = Watcher(GuardSettings(name="a"), admin=twin, look=look, journal=journal, clock=twin.clock, readings=None)
        guard_watch._run(watcher, print)
    return 0

assert run_heard(work, left_behind=str) == 0
print("ended", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_look_that_waits(number: signal.Signals, tmp_path: Path) -> None:
    command = [sys.executable, "-c", WATCH, str(tmp_path / "journal.sqlite")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "looking\n"
        process.send_signal(number)
        assert process.stdout.readline() == "ended\n"
        assert process.wait(120) == 0


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--agents-token env:HOME", "--agents-token needs --agents HOST:PORT"),
        ("--agents 127.0.0.1:0", "accepting reports needs a token, or TLS"),
        ("--agents 127.0.0.1:0 --agents-token short", "the token has fewer than 16 characters"),
        ("--agents 127.0.0.1:0 --agents-tls-ca ca.pem", "--agents-tls-ca needs --agents-tls-cert"),
        ("--agents 127.0.0.1:0 --agents-tls-cert no --agents-tls-ca no", "cannot load the CA certificates"),
    ],
)
def test_agents_are_not_listened_to_without_knowing_who_they_are(words: str, why: str) -> None:
    arguments = parser("guard").parse_args(["guard", "--bootstrap", "127.0.0.1:1", *words.split()])
    with pytest.raises(UsageError, match=why), listening(agents_request(arguments), (), print):
        pass


def test_where_a_record_is_cannot_be_told_without_agents(
    nowhere: str, journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["guard", "status", "--bootstrap", nowhere, "--journal", str(journal), "--record"]
    assert main([*words, "orders-0@7"]) == 2
    assert "--record needs agents" in capsys.readouterr().err
    for wrong in ("orders@7", "orders-0", "$(id)-0@7", "orders-99999999999@7"):
        with pytest.raises(SystemExit):
            main([*words, wrong])


def test_a_cluster_that_shows_this_user_nothing_is_not_called_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with scripted.running(scripted.Model(topics={})) as bootstrap:
        assert main(["guard", "check", "--bootstrap", bootstrap]) == 3
    assert "shows no topic: there is none, or this user may describe none" in capsys.readouterr().out


def test_a_topic_that_is_not_there_or_not_shown_is_refused_with_the_reason(capsys: pytest.CaptureFixture[str]) -> None:
    with scripted.running(scripted.Model(topics={"orders": 1})) as bootstrap:
        assert main(["guard", "--bootstrap", bootstrap, "--once", "--topic", "nope"]) == 2
    assert "--topic nope: UNKNOWN_TOPIC_OR_PARTITION: there is no such topic\n" in capsys.readouterr().err
    model = scripted.Model(topics={"orders": 1}, refused={scripted.METADATA: scripted.DENIED})
    with scripted.running(model) as bootstrap:
        assert main(["guard", "--bootstrap", bootstrap, "--once", "--topic", "orders"]) == 2
    wanted = "--topic orders: TOPIC_AUTHORIZATION_FAILED; this user lacks DESCRIBE on the topic\n"
    assert wanted in capsys.readouterr().err
