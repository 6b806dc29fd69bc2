"""What a power loss may leave of a directory, from the record of what a program asked of the file system.

The model is the weakest that file systems in use come near to (the default of ALICE: Pillai et al., "All File Systems Are Not
Created Equal", OSDI 2014; CrashMonkey, OSDI 2018, samples alike), weaker than ext4, XFS and Btrfs:

- What was written to a file is safe once the file was synced. Before, any write may be lost, there, cut off anywhere, or
  there in size only, as zeros; later ones may be there without earlier ones.
- An entry of a directory (made, renamed, linked, removed) is safe once the directory was synced; a rename into another
  directory, once that one was. Before, any may be lost. Those of one name happen in their order; those of different names
  in any. A rename happens whole or not at all. Syncing a file does not save its name, syncing a name does not save the content.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, combinations
from pathlib import Path

ROOT = 0
EXHAUSTIVE_MAX = 8
"""Pending entries of which every subset is tried."""
RANDOM_PER_MOMENT = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Entries:
    """One step of directories: a name (directory's inode, name) gets an inode, or None where it goes. The last one decides
    which directory must be synced."""

    changes: tuple[tuple[int, str, int | None], ...]
    asked: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Data:
    inode: int
    position: int
    content: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    inode: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sync:
    inode: int
    began: int
    """Steps before it began: those it covers."""
    asked: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """The program has said that so much is done."""

    text: str


Step = Entries | Data | Size | Sync | Mark


@dataclass(slots=True)
class Tree:
    """Directories and files by inode."""

    directories: dict[int, dict[str, int]] = field(default_factory=lambda: {ROOT: {}})
    files: dict[int, bytearray] = field(default_factory=dict)

    @classmethod
    def of(cls, root: Path) -> Tree:
        tree = cls()
        tree._scan(root, ROOT)
        return tree

    def _scan(self, directory: Path, inode: int) -> None:
        for path in sorted(directory.iterdir()):
            number = self.new_inode()
            self.directories[inode][path.name] = number
            if path.is_dir():
                self.directories[number] = {}
                self._scan(path, number)
            else:
                self.files[number] = bytearray(path.read_bytes())

    def new_inode(self) -> int:
        return len(self.directories) + len(self.files)

    def copy(self) -> Tree:
        return Tree(
            directories={inode: dict(names) for inode, names in self.directories.items()},
            files={inode: content[:] for inode, content in self.files.items()},
        )

    def inode_of(self, path: str) -> int:
        inode = ROOT
        for name in filter(None, path.split("/")):
            inode = self.directories[inode][name]
        return inode

    def put(self, step: Entries) -> None:
        for directory, name, inode in step.changes:
            if inode is None:
                self.directories[directory].pop(name, None)
            else:
                self.directories[directory][name] = inode

    def write(self, step: Data | Size) -> None:
        content = self.files[step.inode]
        end = step.size if isinstance(step, Size) else step.position
        content.extend(bytes(max(end - len(content), 0)))
        if isinstance(step, Size):
            del content[step.size :]
        else:
            content[end : end + len(step.content)] = step.content

    def contents(self) -> dict[str, bytes | None]:
        """By path; None is a directory."""
        return dict(self._below(ROOT, ""))

    def _below(self, inode: int, prefix: str) -> Iterator[tuple[str, bytes | None]]:
        for name, child in sorted(self.directories[inode].items()):
            yield prefix + name, bytes(self.files[child]) if child in self.files else None
            if child in self.directories:
                yield from self._below(child, f"{prefix}{name}/")


@dataclass(frozen=True, kw_only=True)
class Recording:
    """`before` is all safe; inodes that the steps make are in `made`: True for a directory. Not slotted: it caches."""

    before: Tree
    steps: tuple[Step, ...]
    made: dict[int, bool]

    @cached_property
    def saved_by(self) -> dict[int, int]:
        """Of each step that is ever safe: the sync since which it is."""
        saved: dict[int, int] = {}
        for i, sync in enumerate(self.steps):
            if isinstance(sync, Sync):
                steps = [j for j in range(sync.began) if j not in saved and _saves(sync, self.steps[j])]
                for j in steps:
                    for k in {j} | (self.needed(j) if isinstance(self.steps[j], Entries) else set()):
                        saved.setdefault(k, i)
        return saved

    @cached_property
    def _earlier(self) -> dict[int, set[int]]:
        """Steps of the same names before each, and theirs."""
        last: dict[tuple[int, str], int] = {}
        earlier: dict[int, set[int]] = {}
        for i, step in enumerate(self.steps):
            if isinstance(step, Entries):
                before = {last[name] for name in _names(step) if name in last}
                earlier[i] = before.union(*(earlier[j] for j in before))
                last.update(dict.fromkeys(_names(step), i))
        return earlier

    def ended(self) -> Tree:
        """As it is if no power is lost."""
        return self._applied(len(self.steps), lambda i: True, lambda inode, pending: pending)

    def _applied(
        self, moment: int, is_there: Callable[[int], bool], left: Callable[[int, list[Data | Size]], list[Data | Size]],
    ) -> Tree:  # fmt: skip
        """`left`: of the pending writes of an inode, those that are there (they may be others)."""
        tree = self.before.copy()
        for inode, is_directory in self.made.items():
            if is_directory:
                tree.directories[inode] = {}
            else:
                tree.files[inode] = bytearray()
        pending: dict[int, list[Data | Size]] = {}
        safe = self.safe(moment)
        for i, step in enumerate(self.steps[:moment]):
            if isinstance(step, Entries):
                if i in safe or is_there(i):
                    tree.put(step)
            elif isinstance(step, Data | Size):
                if i in safe:
                    tree.write(step)
                else:
                    pending.setdefault(step.inode, []).append(step)
        for inode, steps in pending.items():
            for step in left(inode, steps):
                tree.write(step)
        return tree

    def safe(self, moment: int) -> set[int]:
        """Steps that no power loss at this moment undoes."""
        return {i for i, sync in self.saved_by.items() if sync < moment}

    def needed(self, step: int) -> set[int]:
        """Steps of the same names before it, and theirs."""
        return self._earlier[step]

    def pending(self, moment: int) -> tuple[list[int], list[int]]:
        """Steps of directories, and inodes with writes, that are not safe yet."""
        safe = self.safe(moment)
        steps = [i for i, step in enumerate(self.steps[:moment]) if isinstance(step, Entries) and i not in safe]
        inodes = {s.inode for i, s in enumerate(self.steps[:moment]) if isinstance(s, Data | Size) and i not in safe}
        return steps, sorted(inodes)

    def moments(self) -> list[int]:
        """What may be left only gets more until something is synced or said: just before that, everything is."""
        return [i for i, step in enumerate(self.steps) if isinstance(step, Sync | Mark)] + [len(self.steps)]

    def without(self, sync: int) -> Recording:
        """As if it had not been asked for."""
        steps = [
            replace(step, began=step.began - (step.began > sync)) if isinstance(step, Sync) else step
            for i, step in enumerate(self.steps)
            if i != sync
        ]
        return Recording(before=self.before, steps=tuple(steps), made=self.made)

    def said(self, moment: int) -> tuple[str, ...]:
        return tuple(step.text for step in self.steps[:moment] if isinstance(step, Mark))


def _saves(sync: Sync, step: Step) -> bool:
    if isinstance(step, Entries):
        return step.changes[-1][0] == sync.inode
    return isinstance(step, Data | Size) and step.inode == sync.inode


def _names(step: Step) -> set[tuple[int, str]]:
    return {(directory, name) for directory, name, _ in step.changes} if isinstance(step, Entries) else set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """What one power loss leaves; `how` tells which, for a person."""

    tree: dict[str, bytes | None]
    said: tuple[str, ...]
    ended: bool
    how: str

    @property
    def identity(self) -> str:
        digest = hashlib.sha256(repr((self.said, self.ended)).encode())
        for path, content in self.tree.items():
            digest.update(f"{path}\0{'-' if content is None else len(content)}\0".encode() + (content or b""))
        return digest.hexdigest()

    def write(self, root: Path) -> Path:
        root.mkdir(parents=True)
        for path, content in self.tree.items():
            if content is None:
                (root / path).mkdir()
            else:
                (root / path).write_bytes(content)
        return root


def crashes(recording: Recording, rng: random.Random) -> Iterator[Crash]:
    """Each different state once, the telling ones of all moments in a random order first, then random ones."""
    seen: set[str] = set()
    systematic = [(moment, *plan) for moment in recording.moments() for plan in _plans(recording, moment, rng)]
    rng.shuffle(systematic)
    drawn = ((moment, *_random_plan(recording, moment, rng)) for moment in recording.moments() * RANDOM_PER_MOMENT)
    for moment, entries, how_data, how in chain(systematic, drawn):
        tree = recording._applied(moment, entries.__contains__, how_data)
        crash = Crash(
            tree=tree.contents(), said=recording.said(moment), ended=moment == len(recording.steps),
            how=f"power lost before step {moment} of {len(recording.steps)} ({_asked(recording, moment)}): {how}",
        )  # fmt: skip
        if crash.identity not in seen:
            seen.add(crash.identity)
            yield crash


Left = Callable[[int, list[Data | Size]], list[Data | Size]]


def _plans(recording: Recording, moment: int, rng: random.Random) -> Iterator[tuple[set[int], Left, str]]:
    """Which pending entries are there, and what of the pending writes; nothing, all, all but one, one alone, the first ones."""
    steps, inodes = recording.pending(moment)
    everything = set(steps)
    needed = {i: recording.needed(i) & everything for i in steps}

    def asked(i: int) -> str:
        step = recording.steps[i]
        return step.asked if isinstance(step, Entries) else ""

    for name, left in DATA.items():
        yield set(), left(rng), f"no entry, data {name}"
        yield everything, left(rng), f"every entry, data {name}"
        for inode in inodes:
            yield everything, _only(inode, left(rng)), f"every entry, data of inode {inode} {name}"
    for i in steps:
        without = {j for j in steps if j == i or i in needed[j]}
        yield everything - without, whole, f"all but {asked(i)}"
        yield {i} | needed[i], whole, f"only {asked(i)}"
        yield {i} | needed[i], nothing, f"only {asked(i)}, no data"
    for k in range(1, len(steps)):
        yield set(steps[:k]), whole, f"up to {asked(steps[k - 1])}"
    if len(steps) <= EXHAUSTIVE_MAX:
        subsets = chain.from_iterable(combinations(steps, k) for k in range(len(steps)))
        for subset in map(set, subsets):
            if all(needed[i] <= subset for i in subset):
                yield subset, whole, f"only {', '.join(map(asked, sorted(subset)))}"


def _random_plan(recording: Recording, moment: int, rng: random.Random) -> tuple[set[int], Left, str]:
    steps, _ = recording.pending(moment)
    share = rng.random()
    chosen: set[int] = set()
    for i in steps:
        if rng.random() < share and recording.needed(i) & set(steps) <= chosen:
            chosen.add(i)

    def left(inode: int, pending: list[Data | Size]) -> list[Data | Size]:
        return _drawn(rng)(inode, pending)

    return chosen, left, f"entries {sorted(chosen)} at random"


def _drawn(rng: random.Random) -> Left:
    return rng.choice(list(DATA.values()))(rng)


def whole(inode: int, pending: list[Data | Size]) -> list[Data | Size]:
    return pending


def nothing(inode: int, pending: list[Data | Size]) -> list[Data | Size]:
    return []


def _torn(rng: random.Random) -> Left:
    def left(inode: int, pending: list[Data | Size]) -> list[Data | Size]:
        """Up to one of them, and a part of that."""
        last = rng.randrange(len(pending))
        step = pending[last]
        if isinstance(step, Data):
            step = Data(
                inode=inode, position=step.position, content=step.content[: rng.randrange(len(step.content) + 1)]
            )
        return [*pending[:last], step]

    return left


def _zeros(inode: int, pending: list[Data | Size]) -> list[Data | Size]:
    return [
        Data(inode=inode, position=step.position, content=bytes(len(step.content))) if isinstance(step, Data) else step
        for step in pending
    ]


def _holes(rng: random.Random) -> Left:
    return lambda inode, pending: [step for step in pending if rng.random() < 0.5]


DATA: dict[str, Callable[[random.Random], Left]] = {
    "whole": lambda rng: whole, "lost": lambda rng: nothing, "torn": _torn, "zeros": lambda rng: _zeros, "with holes": _holes,
}  # fmt: skip


def _only(chosen: int, left: Left) -> Left:
    return lambda inode, pending: left(inode, pending) if inode == chosen else pending


def _asked(recording: Recording, moment: int) -> str:
    step = recording.steps[moment] if moment < len(recording.steps) else None
    return step.asked if isinstance(step, Sync) else "mark" if isinstance(step, Mark) else "the end"


def sampled(recording: Recording, *, seed: int, limit: int) -> list[Crash]:
    found = []
    for crash in crashes(recording, random.Random(seed)):
        found.append(crash)
        if len(found) == limit:
            break
    return found
