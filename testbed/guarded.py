"""The four stories on real brokers with the guard beside them, undisturbed or in trouble: what it must prevent.

One outage of broker 3, twice as long as delete.retention.ms. The guard runs as one runs it, `headstone guard --apply`, in a
process of its own. What is compared: that nothing which broker 3 misses goes while it is away, that every override is as it was
when the guard has let go, that every broker serves the same and the right table. Times are measured on the way.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from headstone.brokers.distribution import Distribution
from headstone.brokers.outages import (
    AWAY,
    BROKER_SETTINGS,
    BROKERS,
    ROLL_MS,
    TOPIC_SETTINGS,
    Outage,
    Stage,
    brokers_with,
    staged,
    wait_removed,
)
from headstone.brokers.processes import wait_until
from headstone.cluster.admin import Admin
from headstone.cluster.connection import Connection
from headstone.coordination.guard_values import DEFAULT_HOLD, HOLD
from headstone.errors import Unfinished
from headstone.sim.variants import VARIANTS

RETENTION_MS = 12_000
RATIO = "min.cleanable.dirty.ratio"
MARGINS = (
    "--poll-ms", "300", "--metadata-age-ms", "500", "--clock-skew-ms", "200", "--effect-ms", "4000", "--pass-start-ms", "300",
    "--slack-share", "0.1",
)  # fmt: skip
STEP_SECONDS_MAX = 180
PASSED = 2
"""So many times delete.retention.ms, broker 3 is away."""

Tell = Callable[[str], None]


@dataclass(slots=True, kw_only=True)
class Guarded:
    """What came of one run. Removed: topics and brokers that lost what broker 3 missed while it was away."""

    trouble: str
    kafka: str
    outages: list[Outage] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    not_restored: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    log_bytes: dict[str, int] = field(default_factory=dict)
    said: str = ""

    @property
    def is_right(self) -> bool:
        return not (self.removed or self.not_restored or any(outage.corrupt for outage in self.outages))


class Guard:
    """`headstone guard --apply` on the cluster; its journal outlives it."""

    def __init__(self, bootstrap: str, root: Path, *words: str) -> None:
        self._words = [*MARGINS, *words]
        self._bootstrap = bootstrap
        self.root = root
        self.output = root / "guard.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        command = [
            sys.executable, "-m", "headstone.cli.main", "guard", "--bootstrap", self._bootstrap, "--apply",
            "--journal", str(self.root / "guard.sqlite"), *self._words,
        ]  # fmt: skip
        before = self.said().count("watching")
        with open(self.output, "ab") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        wait_until(lambda: self._told("watching", before), "the guard watches", seconds_max=STEP_SECONDS_MAX)

    def _told(self, text: str, before: int) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise Unfinished(f"the guard ended:\n{self.said()}")
        return self.said().count(text) > before

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def said(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""


class Play:
    """One run, step by step; troubles come in between."""

    def __init__(self, stage: Stage, guard: Guard, result: Guarded) -> None:
        self.stage = stage
        self.guard = guard
        self.result = result
        self.admin = Admin(Connection.parse(stage.cluster.bootstrap, {}))
        self._topics = [scene.topic for scene in stage.scenes]
        self._found = {topic: self.own(topic) for topic in self._topics}
        self._began = 0.0

    def own(self, topic: str, broker: int | None = None) -> dict[str, str | None]:
        """The topic's own overrides, as that very broker says."""
        configs = self.admin.topic_configs([topic], broker=broker)[topic]
        return {name: configs[name].value if name in configs and configs[name].own else None for name, _ in HOLD}

    def in_force(self, topic: str, broker: int) -> bool:
        configs = self.admin.topic_configs([topic], broker=broker)[topic]
        return all(_same(configs[name].value, value) for name, value in HOLD)

    def away(self) -> None:
        self.stage.switch_off()
        self._began = time.monotonic()
        self.stage.miss()

    def wait_held(self) -> None:
        running = [number for number, broker in self.stage.cluster.brokers.items() if broker.running]

        def held() -> bool:
            self._fill()
            return all(self.in_force(topic, broker) for topic in self._topics for broker in running)

        wait_until(held, "every broker has the hold", seconds_max=STEP_SECONDS_MAX)
        self.note("off to held everywhere")
        self.result.log_bytes["held"] = self._log_bytes()

    def wait_past_danger(self) -> None:
        """Traffic, while whatever is due would go if somebody cleaned."""
        while time.monotonic() < self._began + PASSED * RETENTION_MS / 1000:
            self._fill()
            time.sleep(ROLL_MS / 1000)
        running = {number for number, broker in self.stage.cluster.brokers.items() if broker.running}
        for scene in self.stage.scenes:
            lost = running - set(brokers_with(self.stage.cluster, scene))
            self.result.removed += [f"{scene.topic}: broker {number}" for number in sorted(lost)]
        self.result.log_bytes["before its return"] = self._log_bytes()

    def back(self) -> None:
        self.stage.switch_on()
        self.replicated()

    def replicated(self) -> None:
        self.stage.wait_replicated()
        self._began = time.monotonic()

    def wait_released(self) -> None:
        def released() -> bool:
            self._fill()
            return all(self.own(topic) == found for topic, found in self._found.items())

        try:
            wait_until(released, "the guard lets go", seconds_max=STEP_SECONDS_MAX)
            self.note("back to released")
        except Unfinished:
            self.result.not_restored = [t for t, found in self._found.items() if self.own(t) != found]
            return
        for scene in self.stage.scenes:
            if not scene.moves.after:  # whose markers are newer stay
                wait_removed(self.stage.cluster, scene)
        self.note("back to cleaned")

    def finish(self) -> None:
        self.stage.wait_replicated()
        self.result.outages = self.stage.read()
        self.result.said = self.guard.said()

    def note(self, what: str) -> None:
        self.result.seconds[what] = round(time.monotonic() - self._began, 1)

    def _fill(self) -> None:
        for scene in self.stage.scenes:
            scene.fill()

    def _log_bytes(self) -> int:
        folders = [self.stage.cluster.brokers[1].log_dir / f"{topic}-0" for topic in self._topics]
        return sum(path.stat().st_size for folder in folders for path in folder.glob("*.log"))


def _same(value: str | None, wanted: str | None) -> bool:
    return value == wanted or (value is not None and wanted is not None and float(value) == float(wanted))


def undisturbed(play: Play) -> None:
    play.guard.start()
    play.away()
    play.wait_held()
    play.stage.go_on()
    play.wait_past_danger()
    play.back()
    play.wait_released()


def killed(play: Play) -> None:
    """kill -9 as soon as it holds; it comes back when the danger would be over."""
    play.guard.start()
    play.away()
    play.wait_held()
    play.guard.kill()
    play.stage.go_on()
    play.wait_past_danger()
    play.guard.start()
    play.back()
    play.guard.kill()
    play.guard.start()
    play.wait_released()


def failover(play: Play) -> None:
    """The other two brokers, which are the controllers too, are restarted one after the other."""
    play.guard.start()
    play.away()
    play.wait_held()
    play.stage.go_on()
    for number in (1, 2):
        play.stage.cluster.brokers[number].stop()
        play.stage.cluster.brokers[number].start()
    play.wait_past_danger()
    play.back()
    play.wait_released()


def slow(play: Play) -> None:
    """Broker 1 stands still for a second out of two: whatever it is asked is answered late."""
    with _every(2.0, lambda: _halt(play, 1, 1.0)):
        undisturbed(play)


def robot(play: Play) -> None:
    """Every second somebody deletes whatever overrides a topic has of the three; only the cluster default is out of reach."""

    def undo() -> None:
        for scene in play.stage.scenes:
            play.admin.alter_topic(scene.topic, dict.fromkeys((name for name, _ in HOLD), None))

    with _every(1.0, undo):
        undisturbed(play)
    default = play.admin.broker_configs(None)
    left = [name for name, _ in DEFAULT_HOLD if name in default and default[name].own]
    play.result.not_restored += [f"the cluster default: {name}" for name in left]


def late(play: Play) -> None:
    """Nobody guards until everything is removed; then the guard finds a replica that must not lead."""
    play.away()
    play.stage.wait_removed()
    play.stage.go_on()
    play.guard.start()
    started = time.monotonic()
    wait_until(
        lambda: all(AWAY not in replicas for replicas in _replicas(play)), "expelled", seconds_max=STEP_SECONDS_MAX
    )
    play.result.seconds["guard to expelled"] = round(time.monotonic() - started, 1)
    play.stage.switch_on()
    wait_until(
        lambda: all(replicas == BROKERS for replicas in _replicas(play)), "added again", seconds_max=STEP_SECONDS_MAX
    )
    play.note("off to added again")
    play.replicated()
    play.wait_released()


def _replicas(play: Play) -> list[tuple[int, ...]]:
    topics = play.admin.describe([scene.topic for scene in play.stage.scenes]).topics
    return [tuple(state.replicas) for partitions in topics.values() for state in partitions.values()]


def _halt(play: Play, number: int, seconds: float) -> None:
    process = play.stage.cluster.brokers[number].process_id
    os.kill(process, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(process, signal.SIGCONT)


@contextmanager
def _every(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """What it cannot do now, it does the next time."""
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(seconds):
            try:
                act()
            except Unfinished:
                continue

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


TROUBLES: dict[str, tuple[Callable[[Play], None], tuple[str, ...]]] = {
    "undisturbed": (undisturbed, ()),
    "killed": (killed, ()),
    "failover": (failover, ()),
    "slow": (slow, ()),
    "robot": (robot, ("--allow", "cluster-default")),
    "late": (late, ("--allow", "readmission")),
}
"""With what the guard is allowed."""


def play_guarded(
    distribution: Distribution, root: Path, trouble: str, *, tell: Tell, variants: Sequence[str] = VARIANTS
) -> Guarded:
    act, words = TROUBLES[trouble]
    result = Guarded(trouble=trouble, kafka=distribution.version)
    # Overrides of the three are the robot's to delete: the brokers' default makes cleaners quick instead.
    topic = {name: value for name, value in TOPIC_SETTINGS.items() if name != RATIO}
    topic["delete.retention.ms"] = RETENTION_MS
    broker = {**BROKER_SETTINGS, "log.cleaner.min.cleanable.ratio": TOPIC_SETTINGS[RATIO]}
    with staged(
        distribution, root, variants, tell=tell, topic_settings=topic, broker_settings=broker
    ) as stage:  # fmt: skip
        stage.begin()
        guard = Guard(stage.cluster.bootstrap, root, *words)
        play = Play(stage, guard, result)
        try:
            act(play)
            play.finish()
        finally:
            guard.kill()
            play.admin.close()
    return result
