"""A name that a journal or a broker may hold does nothing to who reads what is said of it, or pastes it into a shell."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from headstone.cli.guard_readmit import done_lines, plan_lines
from headstone.cli.output import Output
from headstone.coordination.guard_values import RATIO
from headstone.guard.acting.release import Undo, plan_release, undo_commands
from headstone.guard.by_hand import release_lines
from headstone.guard.ledger.commands import hold, release
from headstone.guard.ledger.journal import Journal
from headstone.guard.monitoring.current_status import journal_status
from headstone.guard.readmission.driver import Ended, Readmitted, readmit
from headstone.guard.readmission.plan import not_judged
from headstone.log.topic_partition import TopicPartition
from tests.guard.test_readmission import PLAN
from tests.guard.test_status import held_twin
from tests.guard.watching import means_of
from tests.guard.world import CLUSTER_ID, ClusterTwin, Topic

HOSTILE = "or'ders$(touch stung)`touch stung`;touch stung\x1b[2J\r\n"
TOOLS = "kafka-configs.sh"


def pasted(commands: Sequence[str], directory: Path) -> list[list[str]]:
    """The words that the tool gets of each command in a shell, in a directory where nothing else may happen."""
    words = []
    for command in commands:
        script = f"{TOOLS}() {{ printf '%s\\0' \"$@\"; }}\n{command}\n"
        run = subprocess.run(["bash", "-c", script], cwd=directory, capture_output=True, text=False, check=True)
        words.append(run.stdout.decode().split("\0")[:-1])
    assert list(directory.iterdir()) == []
    return words


def test_a_release_is_shown_and_pasted_without_being_obeyed(tmp_path: Path) -> None:
    paste = tmp_path / "paste"
    paste.mkdir()
    with Journal.open(tmp_path / "journal.sqlite", cluster_id=CLUSTER_ID) as journal:
        twin = held_twin(journal, HOSTILE)
        plan = plan_release(twin, journal, [])  # type: ignore[arg-type]
        status = journal_status(journal, now_ms=twin.now_ms, why=HOSTILE)
    plan.append(
        Undo(topic=HOSTILE, restore=((RATIO, HOSTILE),), left=((RATIO, HOSTILE),), outcome=f"failed: {HOSTILE}")
    )
    said = list(release_lines(plan, status, HOSTILE, applied=False))
    assert [line for line in said if not line.isprintable()] == []
    named = [undo_commands(undo, HOSTILE) for undo in plan]
    for (words,) in (pasted(commands, paste) for commands in named):
        assert (words[1], words[words.index("--entity-name") + 1]) == (HOSTILE, HOSTILE)


@pytest.mark.parametrize("away", [False, True])
def test_a_readmission_is_shown_without_being_obeyed(away: bool, tmp_path: Path) -> None:
    readmission = replace(PLAN.readmission, topic=HOSTILE, was_away=away)
    commands = (hold(HOSTILE, bootstrap=HOSTILE), release(HOSTILE, ((RATIO, HOSTILE),), bootstrap=HOSTILE))
    judged = replace(PLAN.judged, why=HOSTILE)
    plan = replace(PLAN, readmission=readmission, away=away, judged=judged, commands=commands)
    refused = replace(plan, refusals=(HOSTILE,))
    ended = Readmitted(
        partition=TopicPartition(HOSTILE, 0), broker=3, ended=Ended.READMITTED, why=HOSTILE, stray=plan.stray
    )
    said = [*plan_lines([plan, refused], Output()), *done_lines([ended], Output())]
    assert [line for line in said if not line.isprintable()] == []
    assert [words[1] for words in pasted(commands, tmp_path)] == [HOSTILE, HOSTILE]


def test_what_was_found_in_a_replica_is_told_without_being_obeyed(tmp_path: Path) -> None:
    judged = replace(PLAN.judged, why=HOSTILE)
    twin = ClusterTwin(orders=Topic(replicas=PLAN.readmission.order))
    said: list[str] = [not_judged(TopicPartition(HOSTILE, 0), 3, judged)]
    with Journal.open(tmp_path / "journal.sqlite", cluster_id=CLUSTER_ID) as journal:
        means = means_of(twin, journal)
        means.tell = said.append
        with pytest.raises(KeyboardInterrupt):
            readmit(means, [replace(PLAN, judged=judged)])
    assert [line.count("or'ders$(touch stung)") for line in said] == [2, 1, 0]
    assert [line for line in said if not line.isprintable()] == []
