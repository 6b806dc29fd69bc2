"""What happens to the guard, the brokers and the topics while broker 3 is away: one function for each trouble.

Each plays the four stories to their end, and waits for what the guard must do and say on the way.
`campaigns/guarded_outages.py` runs them.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from headstone.brokers.distribution import Distribution
from headstone.brokers.outages import AWAY, BROKER_SETTINGS, BROKERS, TOPIC_SETTINGS, OutageStage, staged
from headstone.brokers.processes import Cluster, wait_until
from headstone.cluster.wire import PartitionState
from headstone.coordination.guard_values import DEFAULT_HOLD, HOLD, RATIO, AlarmKind
from headstone.errors import Unfinished
from headstone.guard.loop.alarms import REFUSED
from headstone.log.topic_partition import TopicPartition
from headstone.sim.variants import VARIANTS
from testbed.clock_ahead import check_ahead, set_ahead
from testbed.guarded import RETENTION_MS, STEP_SECONDS_MAX, Guard, Guarded, Play
from testbed.login import PASSWORD, add_login, allow, login_bootstrap, login_words, take_back

LATE, AHEAD = 2, 2
"""The broker that gets its copies only while broker 3 is away; the broker whose clock is ahead."""
AHEAD_SECONDS = 3600
COORDINATING = "__transaction_state"

Tell = Callable[[str], None]


def undisturbed(play: Play) -> None:
    play.guard.start()
    play.away()
    play.wait_held()
    play.stage.go_on()
    play.wait_past_danger()
    play.back()
    play.wait_released()


def killed(play: Play) -> None:
    """kill -9 as soon as it holds; it is restarted when the danger would be over."""
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
    """Broker 1 is suspended for one second out of two, so everything it is asked is answered late."""
    with _every(2.0, lambda: _halt(play, 1, 1.0)):
        undisturbed(play)


def robot(play: Play) -> None:
    """Every second a robot deletes a topic's overrides of the three settings; only the cluster default is out of its reach."""

    def undo() -> None:
        for scene in play.stage.scenes:
            play.admin.alter_topic(scene.topic, dict.fromkeys((name for name, _ in HOLD), None))

    with _every(1.0, undo):
        undisturbed(play)
    default = play.admin.broker_configs(None)
    left = [name for name, _ in DEFAULT_HOLD if name in default and default[name].own]
    play.result.not_restored += [f"the cluster default: {name}" for name in left]


def late(play: Play) -> None:
    """No guard runs until everything is removed; then the guard finds a replica that must not lead."""
    play.away()
    play.stage.wait_removed()
    play.stage.go_on()
    play.guard.start()
    _readmitted(play, "guard to expelled")


def _readmitted(play: Play, what: str) -> None:
    started = time.monotonic()
    wait_until(
        lambda: all(AWAY not in replicas for replicas in _replicas(play)), "expelled", seconds_max=STEP_SECONDS_MAX
    )
    play.result.seconds[what] = round(time.monotonic() - started, 1)
    play.stage.switch_on()
    wait_until(
        lambda: all(replicas == BROKERS for replicas in _replicas(play)), "added again", seconds_max=STEP_SECONDS_MAX
    )
    play.note("off to added again")
    play.replicated()
    play.wait_released()


def refused(play: Play) -> None:
    """The guard's user may not change configs when it must hold, and again when it must release."""
    topics = len(play.topics)
    play.guard.start()
    _forbid(play)
    play.away()
    play.guard.wait_alarm(REFUSED, times=topics)
    _permit(play)
    play.wait_held()
    play.stage.go_on()
    play.wait_past_danger()
    _forbid(play)
    raised = play.guard.alarms().count(REFUSED)
    play.back()
    play.guard.wait_alarm(REFUSED, times=raised + topics)
    _permit(play)
    play.wait_released()


def refused_too_long(play: Play) -> None:
    """It may not hold before everything is removed: it reports that, and readmits once it is permitted."""
    play.guard.start()
    _forbid(play)
    play.away()
    play.guard.wait_alarm(REFUSED, times=len(play.topics))
    play.guard.wait_alarm(AlarmKind.TOO_LATE, times=len(play.topics))
    play.stage.wait_removed()
    play.stage.go_on()
    _permit(play)
    _readmitted(play, "permitted to expelled")


def added(play: Play) -> None:
    """Broker 2 gets a copy of each topic while broker 3 is away and no hold is due yet: the hold is for the new copy."""
    _assign(play, tuple(broker for broker in BROKERS if broker != LATE))
    play.guard.start()
    play.away()
    _assign(play, (*(broker for broker in BROKERS if broker != LATE), LATE))
    play.wait_held()
    play.stage.go_on()
    play.wait_past_danger()
    play.back()
    play.wait_released()


def clock(play: Play) -> None:
    """Broker 2 is an hour ahead and delete.retention.ms an hour longer than usual, so what another broker has stamped is due
    there as early as usual. Broker 2 gets its copies while broker 3 is away; only a guard that knows of the clock has held by
    then."""
    _assign(play, tuple(broker for broker in BROKERS if broker != LATE))
    play.guard.start()
    _coordinate(play)
    play.away()
    play.wait_held()
    _assign(play, (*(broker for broker in BROKERS if broker != LATE), LATE))
    play.stage.go_on()
    play.wait_past_danger()
    play.back()
    play.wait_released(cleans=False)  # an hour later


def clock_beyond(play: Play) -> None:
    """Broker 2 is an hour ahead, delete.retention.ms is seconds: no hold is in time. The guard reports that, holds, and
    reads."""
    play.guard.start()
    _coordinate(play)
    play.guard.wait_alarm(AlarmKind.RETENTION_TOO_SHORT, times=len(play.topics))
    play.away()
    play.guard.wait_alarm(AlarmKind.TOO_LATE, times=len(play.topics))
    play.wait_held()
    play.stage.go_on()
    play.wait_past_danger()
    play.back()
    play.wait_released()


def _forbid(play: Play) -> None:
    take_back(play.stage.cluster, "TOPIC", "*", ["ALTER_CONFIGS"])


def _permit(play: Play) -> None:
    allow(play.stage.cluster, "TOPIC", "*", ["ALTER_CONFIGS"])


def _assign(play: Play, brokers: tuple[int, ...]) -> None:
    """Returns when every copy that can exist is in sync, and other copies are gone. Before 4.0 Kafka does not finish a
    reassignment until absent brokers are back."""
    play.admin.reassign({TopicPartition(topic, 0): brokers for topic in play.topics})
    running = {number for number in brokers if play.stage.cluster.brokers[number].running}
    folders = [play.stage.cluster.brokers[number].log_dir for number in BROKERS if number not in brokers]

    def assigned() -> bool:
        left = [folder / f"{topic}-0" for folder in folders for topic in play.topics]
        in_sync = all(running <= set(state.isr) for state in _states(play))
        return in_sync and all(replicas == brokers for replicas in _replicas(play)) and not any(map(Path.exists, left))

    wait_until(assigned, f"all topics on brokers {brokers}", seconds_max=STEP_SECONDS_MAX)


def _with_clock(cluster: Cluster) -> None:
    set_ahead(cluster.brokers[AHEAD], AHEAD_SECONDS)


def _coordinated(stage: OutageStage) -> None:
    """The broker that is ahead keeps all transactions: where clocks differ, a broker that takes over would end them at once.
    And its stamps show its clock to the guard."""
    check_ahead(stage.cluster.brokers[AHEAD], AHEAD_SECONDS)
    stage.client.producer(transactional_id=COORDINATING).close()
    partitions = int(str(stage.cluster.brokers[AHEAD].settings["transaction.state.log.num.partitions"]))
    stage.client.lead_all([(COORDINATING, number) for number in range(partitions)], AHEAD)


def _coordinate(play: Play) -> None:
    """Writes a stamp of now, as a cluster in use always has one."""
    for topic in play.topics:
        play.stage.client.producer(transactional_id=f"{COORDINATING} {topic}").close()


def _states(play: Play) -> list[PartitionState]:
    topics = play.admin.describe(play.topics).topics
    return [state for partitions in topics.values() for state in partitions.values()]


def _replicas(play: Play) -> list[tuple[int, ...]]:
    return [tuple(state.replicas) for state in _states(play)]


def _halt(play: Play, number: int, seconds: float) -> None:
    process = play.stage.cluster.brokers[number].process_id
    os.kill(process, signal.SIGSTOP)
    try:
        time.sleep(seconds)
    finally:
        os.kill(process, signal.SIGCONT)


@contextmanager
def _every(seconds: float, act: Callable[[], None]) -> Iterator[None]:
    """If it fails, it tries again the next time."""
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """`words` are for the guard, `prepare` is called before the brokers start, `arrange` before the stories begin."""

    act: Callable[[Play], None]
    words: tuple[str, ...] = ()
    retention_ms: int = RETENTION_MS
    logs_in: bool = False
    prepare: Callable[[Cluster], None] = lambda cluster: None
    arrange: Callable[[OutageStage], None] = lambda stage: None


READMISSION = ("--allow", "readmission")
TROUBLES: dict[str, Trouble] = {
    "undisturbed": Trouble(act=undisturbed),
    "killed": Trouble(act=killed),
    "failover": Trouble(act=failover),
    "slow": Trouble(act=slow),
    "robot": Trouble(act=robot, words=("--allow", "cluster-default")),
    "refused": Trouble(act=refused, logs_in=True, prepare=add_login),
    "refused-too-long": Trouble(act=refused_too_long, words=READMISSION, logs_in=True, prepare=add_login),
    "added": Trouble(act=added, words=("--slack-share", "0.5")),
    "clock": Trouble(
        act=clock, retention_ms=AHEAD_SECONDS * 1000 + RETENTION_MS, prepare=_with_clock, arrange=_coordinated
    ),
    "clock-beyond": Trouble(act=clock_beyond, prepare=_with_clock, arrange=_coordinated),
    "late": Trouble(act=late, words=READMISSION),
}


def play_guarded(
    distribution: Distribution, root: Path, name: str, *, tell: Tell, variants: Sequence[str] = VARIANTS
) -> Guarded:
    """Raises Unfinished, with the guard's output, if something that must happen does not."""
    trouble = TROUBLES[name]
    result = Guarded(trouble=name, kafka=distribution.version)
    # The robot deletes overrides of the three settings, so the brokers' default makes cleaners quick instead.
    topic = {name: value for name, value in TOPIC_SETTINGS.items() if name != RATIO}
    topic["delete.retention.ms"] = trouble.retention_ms
    broker = {**BROKER_SETTINGS, "log.cleaner.min.cleanable.ratio": TOPIC_SETTINGS[RATIO]}
    with staged(
        distribution, root, variants, tell=tell, topic_settings=topic, broker_settings=broker, prepare=trouble.prepare
    ) as stage:
        trouble.arrange(stage)
        stage.begin()
        guard = _guard(stage.cluster, root, trouble)
        play = Play(stage, guard, result)
        try:
            trouble.act(play)
            play.finish()
        except Unfinished as error:
            raise Unfinished(f"{error}\nthe guard said:\n{guard.said()}") from error
        finally:
            guard.kill()
            play.admin.close()
    return result


def _guard(cluster: Cluster, root: Path, trouble: Trouble) -> Guard:
    if not trouble.logs_in:
        return Guard(cluster.bootstrap, root, *trouble.words)
    allow(cluster, "TOPIC", "*", ["READ", "DESCRIBE_CONFIGS", "ALTER_CONFIGS"])
    allow(cluster, "BROKER", "kafka-cluster", ["DESCRIBE", "DESCRIBE_CONFIGS", "ALTER_CONFIGS", "ALTER"])
    return Guard(login_bootstrap(cluster), root, *login_words(PASSWORD), *trouble.words)
