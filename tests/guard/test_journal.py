"""The guard's journal: what it keeps, and when, survives its process; what is damaged or somebody else's is refused."""

from __future__ import annotations

import sqlite3
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headstone.coordination.danger import CommittedEnd, Retention
from headstone.coordination.guard_values import DEFAULT_HOLD, HOLD, Away, Complete, Hold, Memory, State, Status, Verdict
from headstone.coordination.readmission import Readmission
from headstone.errors import Unfinished, UsageError
from headstone.guard.ledger.encoding import NotAMemory, memory_json, memory_of
from headstone.guard.ledger.journal import GuardLeaseLost, Journal
from headstone.guard.ledger.journal_file import usual_journal
from headstone.guard.ledger.journal_values import Change, KeptAlarm, Lease, RememberedTopic, ReplicaReading
from headstone.guard.ledger.memory import Recollection
from headstone.guard.ledger.readmissions import keep_readmission, open_readmissions
from headstone.guard.ledger.temporary_changes import (
    TemporaryChange,
    default_before,
    forget_change,
    forget_default_before,
    keep_change,
    note_default_before,
    temporary_changes,
)
from tests.guard.world import CLUSTER_ID, DAY_MS

CLUSTER = "AAAAAAAAAAAAAAAAAAAAAA"
FOUND = ((HOLD[0][0], "0.5"), (HOLD[1][0], None), (HOLD[2][0], None))
MEMORY = Memory(
    retentions=(Retention(retention_ms=5, until_ms=9), Retention(retention_ms=7, since_ms=8)), retention_seen_ms=9,
    ends=((0, CommittedEnd(asked_ms=1, offset=2)), (3, CommittedEnd(asked_ms=4, offset=5))),
    complete=(Complete(partition=0, broker=1, complete_ms=6),),
    away=(Away(partition=0, broker=2, since_ms=1, complete_ms=None, too_late=True, order=(1, 2, 3), expelled_ms=8),),
    hold=Hold(asked_ms=3, found=FOUND, confirmed=(1, 3), confirmed_ms=4), default_hold=FOUND, skew_ms=11,
)  # fmt: skip
CHANGE = Change(
    resource="topic orders", topic="orders", old=FOUND, new=HOLD, reason="behind", evidence="seen", began_ms=10
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "state" / "journal.sqlite"


def opened(file: Path, cluster_id: str | None = CLUSTER) -> Journal:
    return Journal.open(file, cluster_id=cluster_id)


def test_a_memory_comes_back_exactly() -> None:
    assert memory_of(memory_json(MEMORY)) == MEMORY
    assert memory_of(memory_json(Memory())) == Memory()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON"),
        ("[]", "version None"),
        ('{"version": 2, "memory": {}}', "version 2 of the stored state; this program reads version 1"),
        ('{"version": 1}', "expected Memory, found None"),
        ('{"version": 1, "memory": {"skew_ms": "5"}}', "Memory.skew_ms: expected int, found '5'"),
        ('{"version": 1, "memory": {"skew_ms": true}}', "expected int, found True"),
        ('{"version": 1, "memory": {"lost": 1}}', "unknown field lost"),
        ('{"version": 1, "memory": {"complete": [{"partition": 0}]}}', "no field broker"),
        ('{"version": 1, "memory": {"ends": [[0]]}}', "1 items, expected 2"),
        ('{"version": 1, "memory": {"away": {}}}', "expected a list"),
    ],
)
def test_half_a_memory_is_refused(text: str, why: str) -> None:
    with pytest.raises(NotAMemory, match=why.replace("[", r"\[").replace("?", r"\?")):
        memory_of(text)


def test_what_is_written_is_there_for_the_next_process(file: Path) -> None:
    statuses = (Status(partition=0, state=State.HELD, blockers=(2,), since_ms=1, unsafe_ms=9, countdown_ms=-1),)
    kept = RememberedTopic(memory=MEMORY, statuses=statuses, looked_ms=77)
    with opened(file) as journal:
        journal.lead("a", now_ms=0, lease_ms=100, applies=True)
        journal.remember_all({"orders": kept, "é\n": RememberedTopic(memory=Memory())}, holder="a", now_ms=5)
        number = journal.begin(CHANGE)
        journal.note_reading("orders", ReplicaReading(partition=0, broker=2, verdict=Verdict.UNJUDGED, read_ms=8))
        journal.note_fact("margins", "{}")
        journal.note_sizes("orders", {1: 5})
        journal.note_sizes("orders", {1: 9, 2: 7})
        journal.note_released("orders", now_ms=3)
    with opened(file) as journal:
        assert journal.topics() == {"orders": kept, "é\n": RememberedTopic(memory=Memory())}
        assert journal.memory("unknown") == Memory()
        assert journal.changes() == journal.unfinished() == [replace(CHANGE, number=number)]
        journal.end(number, "done", now_ms=12)
        assert journal.changes(topic="orders") == [replace(CHANGE, number=number, outcome="done", ended_ms=12)]
        assert (journal.changes(topic="other"), journal.unfinished()) == ([], [])
        assert journal.readings("orders") == [
            ReplicaReading(partition=0, broker=2, verdict=Verdict.UNJUDGED, read_ms=8)
        ]
        assert (journal.fact("margins"), journal.fact("other")) == ("{}", None)
        assert (journal.sizes(), journal.released()) == ({"orders": {1: 5, 2: 7}}, {"orders": 3})
        journal.forget("orders")
        assert (journal.sizes(), journal.released(), journal.readings("orders")) == ({}, {}, [])
        assert list(journal.topics()) == ["é\n"]
        assert len(journal.changes()) == 1


def test_remembering_one_topic_leaves_what_is_shown_of_it(file: Path) -> None:
    with opened(file) as journal:
        shown = RememberedTopic(memory=Memory(), statuses=(Status(partition=0, state=State.FINE),), looked_ms=7)
        journal.remember_all({"orders": shown}, holder=None, now_ms=0)
        journal.remember("orders", MEMORY)
        assert journal.remembered("orders") == replace(shown, memory=MEMORY)


def test_alarms_stand_as_long_as_they_are_told(file: Path) -> None:
    wrong = KeptAlarm(kind="wrong", topic="orders", partition=0, broker=2)
    held = KeptAlarm(kind="foreign", topic="orders", detail="why")
    with opened(file) as journal:
        journal.set_alarms("orders", [wrong], now_ms=1)
        journal.set_alarms("other", [replace(wrong, topic="other")], now_ms=1)
        journal.set_alarms("orders", [wrong, held], now_ms=2)
        assert journal.alarms("orders") == [replace(held, first_ms=2), replace(wrong, first_ms=1)]
        journal.set_alarms("orders", [], now_ms=3)
        assert journal.alarms() == [replace(wrong, topic="other", first_ms=1)]


def test_two_guards_share_one_journal_and_one_leads(file: Path) -> None:
    with opened(file) as first, opened(file) as second:
        assert first.lease() is None
        mine = Lease(holder="a", until_ms=110, applies=True, epoch=1)
        assert first.lead("a", now_ms=10, lease_ms=100, applies=True) == mine
        assert second.lead("b", now_ms=50, lease_ms=100, applies=True) == mine
        with pytest.raises(GuardLeaseLost, match="a leads now, not b: nothing was changed"):
            second.remember_all({"orders": RememberedTopic(memory=MEMORY)}, holder="b", now_ms=50)
        assert second.topics() == {}
        theirs = Lease(holder="b", until_ms=210, applies=True, epoch=2)
        assert second.lead("b", now_ms=110, lease_ms=100, applies=True) == theirs
        with pytest.raises(GuardLeaseLost):
            first.check_lease("a", now_ms=120)
        second.stand_down("b")
        assert first.lead("a", now_ms=130, lease_ms=100, applies=True).holder == "a"
        with pytest.raises(GuardLeaseLost, match="nobody leads now"):
            first.check_lease("a", now_ms=230)
        with pytest.raises(GuardLeaseLost, match="nobody leads now"):
            first.renew("a", now_ms=230, lease_ms=100)
        assert first.lead("a", now_ms=240, lease_ms=100, applies=True) == replace(mine, until_ms=340, epoch=4)
        assert first.lead("a", now_ms=250, lease_ms=100, applies=True) == replace(mine, until_ms=350, epoch=4)
        assert first.renew("a", now_ms=349, lease_ms=100) == replace(mine, until_ms=449, epoch=4)
        assert second.lead("b", now_ms=449, lease_ms=100, applies=True).holder == "b"
        with pytest.raises(GuardLeaseLost, match="b leads now, not a"):
            first.renew("a", now_ms=450, lease_ms=100)
        assert second.lease() == replace(theirs, until_ms=549, epoch=5)


def test_what_another_guard_did_between_two_leases_of_one_is_seen_by_the_epoch(file: Path) -> None:
    with opened(file) as journal:
        epochs = [
            journal.lead(holder, now_ms=now_ms, lease_ms=100, applies=applies).epoch
            for holder, now_ms, applies in (
                ("dry", 0, False), ("acts", 10, True), ("acts", 60, True), ("b", 160, True), ("acts", 260, True)
            )
        ]  # fmt: skip
        journal.stand_down("acts")
        epochs.append(journal.lead("acts", now_ms=270, lease_ms=100, applies=True).epoch)
    assert epochs == [1, 2, 2, 3, 4, 5]


def test_a_dry_run_gives_way_to_a_guard_that_acts(file: Path) -> None:
    with opened(file) as journal:
        journal.lead("dry", now_ms=0, lease_ms=100, applies=False)
        assert journal.lead("other", now_ms=1, lease_ms=100, applies=False).holder == "dry"
        assert journal.lead("acts", now_ms=2, lease_ms=100, applies=True).holder == "acts"
        assert journal.lead("dry", now_ms=3, lease_ms=100, applies=False).holder == "acts"


def test_the_journal_of_another_cluster_is_refused_and_left_as_it_was(file: Path) -> None:
    with opened(file) as journal:
        journal.remember("orders", MEMORY)
    with pytest.raises(UsageError, match=f"the journal of cluster {CLUSTER}, but this is cluster other: nothing was"):
        opened(file, "other")
    with opened(file, None) as journal:
        assert (journal.cluster_id, journal.memory("orders")) == (CLUSTER, MEMORY)


def test_what_is_no_journal_is_refused_and_never_taken_for_an_empty_one(file: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such journal"):
        opened(file, None)
    file.parent.mkdir()
    file.write_bytes(b"not a database" * 100)
    with pytest.raises(UsageError, match="the journal is damaged: file is not a database"):
        opened(file)
    foreign = tmp_path / "foreign.sqlite"
    with sqlite3.connect(foreign) as connection:
        connection.execute("CREATE TABLE people (name)")
    with pytest.raises(UsageError, match="not a journal of the guard"):
        opened(foreign)


def test_a_journal_that_a_guard_has_just_begun_is_not_called_a_wrong_file(file: Path, tmp_path: Path) -> None:
    empty = tmp_path / "empty.sqlite"
    empty.touch()
    with pytest.raises(Unfinished, match=r"the journal is empty: a guard has just begun it, .* Ask again"):
        opened(empty, None)
    opened(empty).close()
    opened(empty, None).close()


def test_a_journal_of_another_version_or_with_a_damaged_memory_is_refused(file: Path) -> None:
    with opened(file) as journal:
        journal.remember("orders", MEMORY)
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE memory SET memory = '{}'")
    with (
        opened(file) as journal,
        pytest.raises(UsageError, match="damaged: its memory of topic 'orders' cannot"),
    ):
        journal.memory("orders")
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE facts SET value = '99' WHERE name = 'version'")
    with pytest.raises(UsageError, match="the journal has version 99, this program supports version 3"):
        opened(file)


def test_a_journal_whose_pages_are_damaged_is_refused(file: Path) -> None:
    with opened(file) as journal:
        for number in range(200):
            journal.begin(replace(CHANGE, evidence=f"{number}" * 100))
    content = bytearray(file.read_bytes())
    content[4096 * 8 : 4096 * 20] = b"\xff" * (4096 * 12)
    file.write_bytes(content)
    with pytest.raises(UsageError, match="the journal is damaged"):
        opened(file)


def test_the_journal_is_its_owners_alone(file: Path) -> None:
    opened(file).close()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_the_usual_place_has_one_file_per_cluster() -> None:
    assert usual_journal("ab/../c", {"XDG_STATE_HOME": "/state"}) == Path("/state/headstone/guard/ab%2F..%2Fc.sqlite")


def test_a_change_that_is_refused_and_tried_again_as_it_was_is_one_row(file: Path) -> None:
    hold, journal = CHANGE, opened(file)
    tried = []
    for began_ms in (10, 20, 30):
        tried.append(journal.begin(replace(hold, evidence=f"at {began_ms}", began_ms=began_ms)))
        assert [change.number for change in journal.unfinished()] == [tried[0]]
        journal.end(tried[0], "failed: not permitted")
        journal.end(journal.begin(replace(hold, resource="topic users", began_ms=began_ms)), "done")
    other = journal.begin(replace(hold, reason="behind: two", began_ms=40))
    journal.end(other, "done")
    again = journal.begin(replace(hold, reason="behind: two", began_ms=50))
    assert (tried, len({tried[0], other, again})) == ([tried[0]] * 3, 3)
    first = journal.changes(topic="orders")[0]
    assert (first.began_ms, first.last_ms, first.ended_ms, first.times, first.evidence, first.outcome) == (
        10, 30, 30, 3, "at 30", "failed: not permitted",
    )  # fmt: skip


def test_a_change_that_is_done_and_undone_again_and_again_is_two_rows(file: Path) -> None:
    journal = opened(file)
    for began_ms in (10, 20, 30, 40):
        journal.end(journal.begin(replace(CHANGE, evidence=f"at {began_ms}", began_ms=began_ms)), "done")
    assert [(c.began_ms, c.last_ms, c.times, c.evidence, c.outcome) for c in journal.changes()] == [
        (10, None, 1, "at 10", "done"), (20, 40, 3, "at 40", "done"),
    ]  # fmt: skip
    journal.end(journal.begin(replace(CHANGE, old=CHANGE.new, new=CHANGE.old, began_ms=50)), "done")
    journal.end(journal.begin(replace(CHANGE, began_ms=60)), "done")
    begun = journal.begin(replace(CHANGE, began_ms=70))
    assert [change.began_ms for change in journal.changes()] == [10, 20, 50, 60, 70]
    assert [change.number for change in journal.unfinished()] == [begun]
    assert journal.begin(replace(CHANGE, began_ms=80)) != begun


def test_a_readmission_and_a_temporary_change_are_what_comes_back_as_it_was_kept(file: Path) -> None:
    kept = Readmission(
        topic="orders", partition=3, broker=2, order=(2, 1, 3), expelled=True, was_away=True, verified=True, tries=4,
        began_ms=5, topic_id="id", by_guard=True, added_ms=6,
    )  # fmt: skip
    plain = Readmission(topic="orders", partition=0, broker=2, order=())
    changes = [
        TemporaryChange(
            topic="orders", topic_id="id", old=(("b", None), ("a", "")), new=(("b", "1"), ("a", None)), reason="why"
        ),
        TemporaryChange(broker=2, old=(("a", None),), new=(("a", "9"),), began_ms=7),
    ]
    found = tuple((name, "0.1" if "ratio" in name else None) for name, _ in DEFAULT_HOLD)
    with opened(file) as journal:
        keep_readmission(journal, kept)
        keep_readmission(journal, plain)
        for change in changes:
            keep_change(journal, change)
        note_default_before(journal, found, reason="", now_ms=8)
        note_default_before(journal, DEFAULT_HOLD, reason="", now_ms=9)
    with opened(file) as journal:
        assert open_readmissions(journal) == [kept, plain]
        assert temporary_changes(journal) == [replace(change, number=n) for n, change in enumerate(changes, 1)]
        assert default_before(journal) == found
        keep_readmission(journal, replace(kept, tries=5))
        keep_readmission(journal, plain, over=True)
        forget_change(journal, temporary_changes(journal)[0])
        forget_default_before(journal)
    with opened(file) as journal:
        assert open_readmissions(journal) == [replace(kept, tries=5)]
        assert [change.broker for change in temporary_changes(journal)] == [2]
        assert default_before(journal) is None


RETENTIONS = (Retention(since_ms=0, retention_ms=DAY_MS),)
AWAY = Away(partition=0, broker=3, since_ms=5, complete_ms=5, excused_ms=5)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with Journal.open(tmp_path / "journal.sqlite", cluster_id=CLUSTER_ID) as opened:
        opened.lead("guard", now_ms=0, lease_ms=1_000_000, applies=True)
        yield opened


def keep(recollection: Recollection, away: Away, *, now_ms: int) -> None:
    kept = RememberedTopic(memory=Memory(away=(away,), retentions=RETENTIONS), looked_ms=now_ms)
    recollection.keep({"orders": kept}, holder="guard", now_ms=now_ms, looked_ms=now_ms)


def test_a_replica_that_misses_nothing_is_written_when_something_happens_to_it(journal: Journal) -> None:
    recollection = Recollection(journal)
    memories = []
    for now_ms in (10, 20):
        keep(recollection, replace(AWAY, excused_ms=now_ms), now_ms=now_ms)
        memories.append((recollection.memory("orders").away, journal.memory("orders").away))
    late = replace(AWAY, excused_ms=20, too_late=True)
    keep(recollection, late, now_ms=30)
    memories.append((recollection.memory("orders").away, journal.memory("orders").away))
    first, second = replace(AWAY, excused_ms=10), replace(AWAY, excused_ms=20)
    assert memories == [((first,), (first,)), ((second,), (first,)), ((late,), (late,))]


def test_a_temporary_change_that_was_changed_since_it_was_planned_is_not_forgotten(journal: Journal) -> None:
    """A person's plan is older than what a guard has done meanwhile: what it found must still be put back."""
    keep_change(journal, TemporaryChange(broker=2, old=(("rate", None),), new=(("rate", "7"),), began_ms=1))
    (planned,) = temporary_changes(journal)
    forget_change(journal, planned)
    keep_change(journal, TemporaryChange(broker=3, old=(("rate", "1"),), new=(("rate", "7"),), began_ms=2))
    (other,) = temporary_changes(journal)
    assert other.number == planned.number
    forget_change(journal, planned)
    assert temporary_changes(journal) == [other]
    forget_change(journal, replace(other, new=(("rate", "8"),)))
    assert temporary_changes(journal) == [other]
    forget_change(journal, other)
    assert temporary_changes(journal) == []
