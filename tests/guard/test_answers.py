"""How the guard stands, as it answers when it ends and as `guard status` answers: one document, with the same keys."""

from __future__ import annotations

from headstone.guard.agents.listener import Agents
from headstone.guard.agents.summary import FACT, agents_told, as_fact
from headstone.guard.agents.truth import Truth
from headstone.guard.answers import Answer, last_answer
from headstone.guard.ledger.journal import Journal
from headstone.guard.ledger.lock import present
from headstone.guard.loop.rounds import Round
from tests.guard.reporting import Beside, Clock, looked, replica_report
from tests.guard.watching import watcher
from tests.guard.world import MARGINS, ClusterTwin, Topic

HOUR_MS = 3_600_000


def heard(mcco: int) -> Truth:
    truth = Truth(clock=Clock(now_ms=1_700_000_000_000))
    looked(truth)
    for _ in range(2):
        for broker in (1, 2, 3):
            Beside(truth, broker).tells(replica_report(mcco, mcco))
    return truth


def answer(result: Round, journal: Journal, truth: Truth | None, *, later_ms: int = 0) -> Answer:
    now_ms, poll_ms = result.ended_ms + later_ms, MARGINS.poll_ms
    return last_answer(result, journal, Agents(truth), now_ms=now_ms, poll_ms=poll_ms)


def watermark(answered: Answer) -> object:
    """Of the one partition of which agents have told."""
    agents = answered.document["agents"]
    return agents["partitions"][0]["mtro"] if isinstance(agents, dict) else agents


def test_a_guard_that_leads_answers_with_what_its_own_agents_told(journal: Journal) -> None:
    result = watcher(ClusterTwin(orders=Topic()), journal).round()
    journal.note_fact(FACT, as_fact(agents_told(heard(10))))
    assert watermark(answer(result, journal, heard(90))) == 90
    assert watermark(answer(result, journal, None)) is None


def test_a_guard_that_stands_by_answers_with_what_the_one_that_leads_was_told(journal: Journal) -> None:
    twin = ClusterTwin(orders=Topic())
    journal.lead("another", now_ms=twin.now_ms, lease_ms=HOUR_MS, applies=True)
    result = watcher(twin, journal).round()
    assert watermark(answer(result, journal, heard(90))) is None
    journal.note_fact(FACT, as_fact(agents_told(heard(10))))
    assert watermark(answer(result, journal, heard(90))) == 10


def test_a_guard_that_answers_runs_also_when_its_lease_is_over(journal: Journal) -> None:
    result = watcher(ClusterTwin(orders=Topic()), journal).round()
    with present(journal.path):
        answered = answer(result, journal, None, later_ms=HOUR_MS).document
        assert (answered["leader"], answered["runs"]) == (None, True)
    assert answer(result, journal, None, later_ms=HOUR_MS).document["runs"] is False
