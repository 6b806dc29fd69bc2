"""A piece of `campaigns.interruptions` that is cheap enough for every build; and that the campaign sees what it looks for."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from campaigns import interruptions
from campaigns.interruptions import PROCESS, SPARK, Ended, Verb, campaign, verbs

CHEAP = ("inspect", "compact --out", "lake ingest", "lake compact", "lake worker", "synth")
"""On small logs each round takes a second or two, most of it imports."""


def test_every_verb_ends_with_its_code_leaves_no_process_and_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not how soon: a crowded machine may take its time."""
    monkeypatch.setattr(interruptions, "SECONDS_MAX", 60.0)
    chosen = [verb for verb in verbs(PROCESS) if verb.name.startswith(CHEAP)]
    endings = campaign(chosen, rounds=len(chosen), seed=21, records=2000, tell=lambda ended: None)
    assert [(ended.number, ended.verb, fault) for ended in endings for fault in ended.faults] == []
    assert any(ended.code == 3 for ended in endings)


HEARING = (
    "import os, signal, threading; [signal.signal(n, lambda *_: {heard}) for n in (1, 2, 15)]; threading.Event().wait()"
)


def faults_of(program: str, *, endless: bool = False, patience_seconds: float = 5.0) -> list[Ended]:
    """Of a verb that is this program, whatever its words are."""

    class Python(subprocess.Popen[bytes]):
        def __init__(self, words: list[str], **more: object) -> None:
            super().__init__([sys.executable, "-c", program], **more)  # type: ignore[call-overload]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(interruptions, "SECONDS_MAX", 1.0)
        patched.setattr(interruptions, "PATIENCE_SECONDS", patience_seconds)
        patched.setattr(subprocess, "Popen", Python)
        verb = Verb(name="twin", words=lambda scene: ["inspect", str(scene.logs)], again=False, endless=endless)
        patched.setattr(interruptions, "_seconds_of", lambda verb, scene: 2.0)
        return campaign([verb], rounds=4, seed=1, records=200, tell=lambda ended: None)


@pytest.mark.parametrize(
    ("program", "fault"),
    [
        (HEARING.format(heard="None"), "after the last signal"),
        (HEARING.format(heard="os._exit(7)"), "exit code 7"),
        ("import subprocess; subprocess.Popen(['sleep', '20'], start_new_session=True);" + HEARING.format(heard="os._exit(3)"),
         "left running: sleep"),
    ],
)  # fmt: skip
def test_a_verb_that_ends_late_wrongly_or_leaves_a_process_is_found(program: str, fault: str) -> None:
    endings = faults_of(program)
    assert any(fault in text for ended in endings for text in ended.faults)
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


LATE = "import signal, threading; {ignored}; threading.Event().wait(5)"
IGNORED = "[signal.signal(n, signal.SIG_IGN) for n in (1, 2, 15)]"


@pytest.mark.parametrize("endless", [True, False])
def test_only_a_verb_that_would_have_ended_by_itself_may_end_late_with_0(endless: bool) -> None:
    """A worker that took a minute to hear that it should stop has exit code 0, too."""
    endings = faults_of(LATE.format(ignored=IGNORED), endless=endless, patience_seconds=120.0)
    assert {ended.code for ended in endings if ended.signals} & {0}
    assert any("after the last signal" in text for ended in endings for text in ended.faults) == endless


def test_verbs_that_take_an_engine_are_interrupted_on_both() -> None:
    in_process, on_spark = (
        {verb.name for verb in verbs(engine) if verb.name.endswith(")")} for engine in (PROCESS, SPARK)
    )
    assert {name.replace("(process)", "(spark)") for name in in_process} == on_spark
    assert {
        f"lake {name} (spark)" for name in ("status --deep", "read", "export", "mend --apply", "erase", "worker")
    } < on_spark
