"""Golden conversations (`golden.py`): what the real Replica and Leader say to each other, told in `conversations/`.

In a command MCCO and MXFO are what the log proves. Members and readers are separated by spaces:
`1 starts with MCCO 80 MXFO 60`, `1 starts on an empty disk`, `1 stops`, `1 restarts`, `1 restarts with MCCO 60 MXFO 60`,
`1 cleans to MCCO 80 MXFO 60`, `1 truncates to MCCO 60 MXFO 60`, `1 runs version 1`, `1 follows 2`, `1 learns of epoch 4`,
`1 leads epoch 3, members 1 2 3, readers billing`, `1 has members 1 2, readers billing`, `1 polls`, `1 steps down`,
`billing passes 60 at 1`, `state of 1`, `seats of 1`, `blockers of 1`, `10 minutes pass`;
of a link: `lose 1 -> 2`, `hold 1 -> 2`, and `mend 1 -> 2` with `, twice` or `, newest first` for what was held.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from headstone.coordination import leader as leading
from headstone.coordination.watermarks import ReplicaWatermarks
from tests.coordination import golden
from tests.coordination.world import (
    EMPTY_LOG,
    MINUTE_MS,
    World,
    blocker_text,
    durable_text,
    group_text,
    replica_text,
)

CONVERSATIONS = sorted((Path(__file__).parent / "conversations").glob("*.txt"))
PROVED = r"MCCO (?P<mcco>\d+) MXFO (?P<mxfo>\d+)"
WHO = r"(?P<who>\d+)"
SET = r"members (?P<members>[\d ]+)(?:, readers (?P<readers>[\w ]+))?"
LINK = r"(?P<sender>\d+) -> (?P<to>\d+)"


def proved(said: re.Match[str]) -> ReplicaWatermarks:
    return ReplicaWatermarks(mcco=int(said["mcco"]), mxfo=int(said["mxfo"]))


def replica_set(said: re.Match[str]) -> tuple[list[int], list[str]]:
    return [int(member) for member in said["members"].split()], (said["readers"] or "").split()


def link(said: re.Match[str]) -> tuple[int, int]:
    return int(said["sender"]), int(said["to"])


def restart(world: World, said: re.Match[str]) -> None:
    number = int(said["who"])
    local = world.brokers[number].local if said["mcco"] is None else proved(said)
    world.start(number, local, disk_kept=True)


def run_version(world: World, said: re.Match[str]) -> None:
    world.brokers[int(said["who"])].version = int(said["version"])


def follow(world: World, said: re.Match[str]) -> None:
    member = int(said["who"])
    incarnation = world.brokers[member].replica.incarnation
    followed = leading.Followed(member=member, incarnation=incarnation, now_ms=world.now_ms)
    world.lead(int(said["leader"]), followed)


def pass_position(world: World, said: re.Match[str]) -> None:
    position = int(said["position"])
    passed = leading.ReaderPassed(reader=said["reader"], position=position, now_ms=world.now_ms)
    world.lead(int(said["leader"]), passed)


def show_state(world: World, said: re.Match[str]) -> None:
    broker = world.brokers[int(said["who"])]
    assert broker.durable is not None
    world.say(f"on disk {durable_text(broker.durable)}")
    world.say(
        f"in memory group {group_text(broker.replica.group)}, may claim {replica_text(broker.replica.watermarks())}"
    )


def show_seats(world: World, said: re.Match[str]) -> None:
    leader = world.brokers[int(said["who"])].leader
    world.say(f"group {group_text(leader.group)}")
    for member, seat in leader.seats.items():
        if seat.watermarks is None:
            world.say(f"{member} counts as 0")
        else:
            world.say(f"{member} counts as {replica_text(seat.watermarks)}, incarnation {seat.incarnation}")
    for name, reader in leader.readers.items():
        world.say(f"{name} counts as {reader.position}")


def show_blockers(world: World, said: re.Match[str]) -> None:
    blockers = world.brokers[int(said["who"])].leader.blockers()
    for blocker in blockers:
        world.say(blocker_text(blocker))
    if not blockers:
        world.say("nothing is blocked")


def let_time_pass(world: World, said: re.Match[str]) -> None:
    world.now_ms += int(said["minutes"]) * MINUTE_MS


def mend(world: World, said: re.Match[str]) -> None:
    world.lossy.discard(link(said))
    if link(said) in world.held:
        how = said["how"]
        world.release(link(said), twice=how == "twice", newest_first=how == "newest first")


COMMANDS: dict[str, Callable[[World, re.Match[str]], None]] = {
    rf"{WHO} starts with {PROVED}": lambda world, said: world.start(int(said["who"]), proved(said)),
    rf"{WHO} starts on an empty disk": lambda world, said: world.start(int(said["who"]), EMPTY_LOG),
    rf"{WHO} stops": lambda world, said: world.stop(int(said["who"])),
    rf"{WHO} restarts(?: with {PROVED})?": restart,
    rf"{WHO} cleans to {PROVED}": lambda world, said: world.clean(int(said["who"]), proved(said)),
    rf"{WHO} truncates to {PROVED}": lambda world, said: world.truncate(int(said["who"]), proved(said)),
    rf"{WHO} runs version (?P<version>\d)": run_version,
    rf"{WHO} follows (?P<leader>\d+)": follow,
    rf"{WHO} learns of epoch (?P<epoch>\d+)": lambda world, said: world.learn_epoch(
        int(said["who"]), int(said["epoch"])
    ),
    rf"{WHO} leads epoch (?P<epoch>\d+), {SET}": lambda world, said: world.elect(
        int(said["who"]), int(said["epoch"]), *replica_set(said)
    ),
    rf"{WHO} has {SET}": lambda world, said: world.change_members(int(said["who"]), *replica_set(said)),
    rf"{WHO} polls": lambda world, said: world.lead(int(said["who"]), leading.Tick(now_ms=world.now_ms)),
    rf"{WHO} steps down": lambda world, said: world.lead(int(said["who"]), leading.SteppedDown()),
    r"(?P<reader>[a-z]+) passes (?P<position>\d+) at (?P<leader>\d+)": pass_position,
    rf"state of {WHO}": show_state,
    rf"seats of {WHO}": show_seats,
    rf"blockers of {WHO}": show_blockers,
    r"(?P<minutes>\d+) minutes? pass(?:es)?": let_time_pass,
    rf"lose {LINK}": lambda world, said: world.lossy.add(link(said)),
    rf"hold {LINK}": lambda world, said: world.held.update({link(said): []}),
    rf"mend {LINK}(?:, (?P<how>twice|newest first))?": mend,
}


def converse(text: str) -> str:
    world = World()

    def answer(line: str) -> list[str]:
        world.told.clear()
        golden.obey(world, COMMANDS, line)
        world.settle()
        return world.told

    return golden.converse(text, answer)


@pytest.mark.parametrize("path", CONVERSATIONS, ids=lambda path: path.stem)
def test_the_conversation_goes_as_written(path: Path) -> None:
    golden.compare(path, converse(path.read_text(encoding="utf-8")))


def test_every_conversation_says_what_it_shows() -> None:
    assert len(CONVERSATIONS) > 1
    silent = [path.name for path in CONVERSATIONS if not path.read_text(encoding="utf-8").startswith("# ")]
    assert not silent


def test_what_is_not_a_command_is_refused() -> None:
    with pytest.raises(golden.BadConversation, match="not a command: 1 pols"):
        converse("1 starts on an empty disk\n1 pols\n")


def test_a_line_that_nobody_said_does_not_stay() -> None:
    """So that the comparison of the whole text can fail."""
    true = "1 starts on an empty disk\n    1 persists incarnation 1, no epoch, claimed MCCO 0 MXFO 0, group MTRO 0 MXRO 0\n"
    assert converse(true) == true
    assert converse(true + "    1 -> 2  Poll(epoch 3, MTRO 0, MXRO 0)\n") == true
    assert converse(true.splitlines()[0]) == true
