"""The four stories on real brokers with the guard beside them, step by step: what it must prevent.

One outage of broker 3, twice as long as delete.retention.ms. The guard runs as a user runs it, `headstone guard --apply`, in a
process of its own. Checked: nothing that broker 3 misses is removed while it is away; every override is as it was once the
guard has released; every broker serves the same, correct table. Times are measured on the way. `guarded_troubles.py` has what
else happens meanwhile.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from headstone.brokers.outages import ROLL_MS, Outage, OutageStage, brokers_with, wait_removed
from headstone.brokers.processes import wait_until
from headstone.cluster.admin import Admin
from headstone.cluster.connection import Connection
from headstone.coordination.guard_values import HOLD, AlarmKind
from headstone.errors import Unfinished
from headstone.guard.loop.alarms import CLUSTER_LOST, REFUSED, UNSEEN

RETENTION_MS = 12_000
MARGINS = (
    "--poll-ms", "300", "--metadata-age-ms", "2000", "--clock-skew-ms", "200", "--effect-ms", "4000", "--pass-start-ms", "300",
    "--slack-share", "0.1",
)  # fmt: skip
STEP_SECONDS_MAX = 180
PASSED = 2
"""Broker 3 is away for this many times delete.retention.ms."""

KINDS = (*AlarmKind, REFUSED, UNSEEN, CLUSTER_LOST)


@dataclass(slots=True, kw_only=True)
class Guarded:
    """The result of one run. `removed`: topics and brokers that lost what broker 3 missed while it was away."""

    trouble: str
    kafka: str
    outages: list[Outage] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    not_restored: list[str] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    log_bytes: dict[str, int] = field(default_factory=dict)
    log: str = ""
    alarms: list[str] = field(default_factory=list)
    """The kinds that the guard raised, in order."""

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

    def alarms(self) -> list[str]:
        """The kind of each alarm, once for each time it was raised."""
        raised = [line.partition("ALARM ")[2] for line in self.said().splitlines() if "ALARM " in line]
        return [kind for line in raised for kind in KINDS if f": {kind}" in line]

    def wait_alarm(self, kind: str, *, times: int = 1) -> None:
        """Waits until it was raised this often, as a person would see it."""
        assert kind in KINDS
        wait_until(lambda: self.alarms().count(kind) >= times, f"{times} alarms: {kind}", seconds_max=STEP_SECONDS_MAX)


class Play:
    """One run, step by step; troubles come in between."""

    def __init__(self, stage: OutageStage, guard: Guard, result: Guarded) -> None:
        self.stage = stage
        self.guard = guard
        self.result = result
        self.admin = Admin(Connection.parse(stage.cluster.bootstrap, {}))
        self.topics = [scene.topic for scene in stage.scenes]
        self._configs_before = {topic: self.own(topic) for topic in self.topics}
        self._began = 0.0

    def own(self, topic: str, broker: int | None = None) -> dict[str, str | None]:
        """The topic's own overrides, according to that very broker."""
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
            return all(self.in_force(topic, broker) for topic in self.topics for broker in running)

        wait_until(held, "every broker has the hold", seconds_max=STEP_SECONDS_MAX)
        self.note("off to held everywhere")
        self.result.log_bytes["held"] = self._log_bytes()

    def wait_past_danger(self) -> None:
        """Writes until whatever is due would be gone if a broker cleaned."""
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

    def wait_released(self, *, cleans: bool = True) -> None:
        """`cleans`: also wait until the cleaners have removed what they had to keep."""

        def released() -> bool:
            self._fill()
            return all(self.own(topic) == found for topic, found in self._configs_before.items())

        try:
            wait_until(released, "the guard lets go", seconds_max=STEP_SECONDS_MAX)
            self.note("back to released")
        except Unfinished:
            self.result.not_restored = [t for t, found in self._configs_before.items() if self.own(t) != found]
            return
        if not cleans:
            return
        for scene in self.stage.scenes:
            if not scene.moves.after:  # newer markers of the others stay
                wait_removed(self.stage.cluster, scene)
        self.note("back to cleaned")

    def finish(self) -> None:
        self.stage.wait_replicated()
        self.result.outages = self.stage.read()
        self.result.log = self.guard.said()
        self.result.alarms = list(dict.fromkeys(self.guard.alarms()))

    def note(self, what: str) -> None:
        self.result.seconds[what] = round(time.monotonic() - self._began, 1)

    def _fill(self) -> None:
        for scene in self.stage.scenes:
            scene.fill()

    def _log_bytes(self) -> int:
        folders = [self.stage.cluster.brokers[1].log_dir / f"{topic}-0" for topic in self.topics]
        return sum(path.stat().st_size for folder in folders for path in folder.glob("*.log"))


def _same(value: str | None, wanted: str | None) -> bool:
    return value == wanted or (value is not None and wanted is not None and float(value) == float(wanted))
