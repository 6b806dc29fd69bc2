"""Replicas and leaders together, over a network that loses, holds, doubles and reorders, with restarts and lost disks.

Safety at each step: no leader counts more than a member has on its disk. Liveness in the end: when everyone is back, two
polls are enough for all to know the same.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headstone.coordination import leader as leading
from headstone.coordination.watermarks import GroupWatermarks, ReplicaWatermarks, group_watermarks
from tests.coordination.chance import runs, weighted
from tests.coordination.world import EMPTY_LOG, World

MEMBERS = (1, 2, 3)
WHO = st.sampled_from(MEMBERS)
OFFSETS = st.integers(0, 9)
DEEDS = runs(
    weighted(
        (4, st.tuples(st.just("clean"), WHO, OFFSETS, OFFSETS)),
        (4, st.tuples(st.just("poll"), WHO)),
        (1, st.tuples(st.just("elect"), WHO)),
        (2, st.tuples(st.just("follow"), WHO)),
        (1, st.tuples(st.just("truncate"), WHO, OFFSETS, OFFSETS)),
        (1, st.tuples(st.just("restart"), WHO, OFFSETS, OFFSETS)),
        (1, st.tuples(st.just("lose_disk"), WHO)),
        (2, st.tuples(st.just("hold"), WHO, WHO)),
        (2, st.tuples(st.just("release"), st.booleans(), st.booleans())),
        (1, st.tuples(st.just("lose"), WHO, WHO)),
    ),
    40,
)


class Group:
    """Three members, and the newest epoch's leader. Deposed leaders do not know it, and go on."""

    def __init__(self) -> None:
        self.world = World()
        self.leader, self.epoch = 1, 0
        for number in MEMBERS:
            self.world.start(number, EMPTY_LOG)
        self.elect(1)

    def clean(self, who: int, mcco: int, mxfo: int) -> None:
        """Cleaning only adds to what a log proves."""
        known = self.world.brokers[who].local
        self.world.clean(who, ReplicaWatermarks(mcco=max(mcco, known.mcco), mxfo=max(mxfo, known.mxfo)))

    def poll(self, who: int) -> None:
        self.world.lead(who, leading.Tick(now_ms=self.world.now_ms))

    def elect(self, who: int) -> None:
        self.leader, self.epoch = who, self.epoch + 1
        self.world.elect(who, self.epoch, MEMBERS)

    def follow(self, who: int) -> None:
        self.world.learn_epoch(who, self.epoch)
        incarnation = self.world.brokers[who].replica.incarnation
        followed = leading.Followed(member=who, incarnation=incarnation, now_ms=self.world.now_ms)
        self.world.lead(self.leader, followed)

    def truncate(self, who: int, mcco: int, mxfo: int) -> None:
        known = self.world.brokers[who].local
        self.world.truncate(who, ReplicaWatermarks(mcco=min(mcco, known.mcco), mxfo=min(mxfo, known.mxfo)))

    def restart(self, who: int, mcco: int, mxfo: int) -> None:
        known = self.world.brokers[who].local
        kept = ReplicaWatermarks(mcco=min(mcco, known.mcco), mxfo=min(mxfo, known.mxfo))
        self.world.start(who, kept, disk_kept=True)

    def lose_disk(self, who: int) -> None:
        self.world.start(who, EMPTY_LOG)

    def hold(self, sender: int, to: int) -> None:
        self.world.held.setdefault((sender, to), [])

    def release(self, twice: bool, newest_first: bool) -> None:
        for link in sorted(self.world.held):
            self.world.release(link, twice=twice, newest_first=newest_first)

    def lose(self, sender: int, to: int) -> None:
        self.world.lossy ^= {(sender, to)}


def live(deeds: list[tuple[object, ...]]) -> Group:
    group = Group()
    for name, *arguments in deeds:
        getattr(group, str(name))(*arguments)
        group.world.settle()
        check(group.world)
    return group


def check(world: World) -> None:
    for broker in world.brokers.values():
        for member, seat in broker.leader.seats.items():
            other = world.brokers[member]
            if seat.watermarks is None or seat.incarnation != other.replica.incarnation:
                continue
            assert other.durable is not None
            group, claimed = broker.leader.group, other.durable.claimed
            assert seat.watermarks.mcco <= max(claimed.mcco, group.mtro)
            assert seat.watermarks.mxfo <= max(claimed.mxfo, group.mxro)


@given(DEEDS)
def test_no_leader_counts_more_than_a_member_has_claimed_on_disk(deeds: list[tuple[object, ...]]) -> None:
    live(deeds)


@given(DEEDS, WHO)
def test_when_all_are_back_two_polls_tell_everyone_the_same(deeds: list[tuple[object, ...]], leader: int) -> None:
    group = live(deeds)
    world = group.world
    world.lossy.clear()
    group.release(False, False)
    world.settle()
    group.elect(leader)
    world.settle()
    for _ in range(2):
        group.poll(leader)
        world.settle()
    told = {number: broker.replica.group for number, broker in world.brokers.items()}
    known = world.brokers[leader].leader.group
    assert told == dict.fromkeys(MEMBERS, known)
    assert known == group_watermarks([broker.replica.claimed for broker in world.brokers.values()])
    proved = group_watermarks([broker.local for broker in world.brokers.values()])
    assert known.mtro >= proved.mtro
    assert known.mxro >= proved.mxro


def test_a_quiet_cluster_knows_what_all_have_cleaned() -> None:
    group = live([("clean", 1, 9, 8), ("clean", 2, 7, 9), ("clean", 3, 8, 5), ("poll", 1)])
    known = [broker.replica.group for broker in group.world.brokers.values()]
    assert known == [GroupWatermarks(mtro=7, mxro=5)] * 3
