"""Records what a program and its threads ask of the file system below one directory, by strace: the calls of Python, of SQLite
and of native libraries alike. What it has understood is compared with what is on the disk afterwards.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tests.power.disks import Data, Entries, Mark, Recording, Size, Step, Sync, Tree

CALLS = (
    "open", "openat", "creat", "lseek", "write", "pwrite64", "writev", "pwritev", "pwritev2", "truncate", "ftruncate",
    "fallocate", "fsync", "fdatasync", "sync", "syncfs", "sync_file_range", "rename", "renameat", "renameat2", "link",
    "linkat", "symlink", "symlinkat", "unlink", "unlinkat", "mkdir", "mkdirat", "rmdir", "copy_file_range", "sendfile",
    "splice", "mmap",
)  # fmt: skip
LINE = re.compile(r"(?P<task>\d+) +(?:<\.\.\. (?P<resumed>\w+) resumed>)?(?P<rest>.*)")
CALL = re.compile(r"(?P<call>\w+)\((?P<arguments>.*)\)\s+= (?P<answer>-?\d+|0x[0-9a-f]+)")
UNFINISHED = " <unfinished ...>"
STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
DESCRIPTOR = re.compile(r"(?P<number>AT_FDCWD|-?\d+)(?:<(?P<path>(?:\\x[0-9a-f]{2})*)>(?:\(deleted\))?)?")
DIRECTORY = r"(?:AT_FDCWD|\d+)<((?:\\x[0-9a-f]{2})*)>"
STRING_BYTES_MAX = 1 << 28
SHARED_MEMORY = "-shm"
"""SQLite's, which it makes anew: nothing in it need survive."""
OUTPUT_MAX = 4000


class NoTracing(Exception):
    """This machine cannot record."""


class NotUnderstood(Exception):
    """The record and the disk differ, or the program did what the recorder does not follow."""


def record(program: Sequence[str], root: Path, marks: Path, log: Path, env: dict[str, str] | None = None) -> Recording:
    """Runs it to its end. Whatever it writes to the file `marks` is a mark."""
    require_strace(log)
    before = Tree.of(root)
    options = ["-f", "-qq", "-y", "-xx", "-s", str(STRING_BYTES_MAX), "--seccomp-bpf", "-e", "signal=none"]
    command = ["strace", *options, "-e", f"trace={','.join(CALLS)}", "-o", str(log), "--", *program]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, **(env or {})}, check=False)
    if done.returncode != 0:
        raise NotUnderstood(f"{' '.join(program)} ended with {done.returncode}: {done.stderr[-OUTPUT_MAX:]}")
    reader = _Reader(before, root, marks)
    with log.open(encoding="ascii") as lines:
        reader.read(lines)
    log.unlink()
    recording = Recording(before=before, steps=tuple(reader.steps), made=reader.made)
    _compare(recording.ended().contents(), Tree.of(root).contents())
    return recording


def require_strace(log: Path) -> None:
    """It may be missing, or not allowed to trace."""
    if shutil.which("strace") is None:
        raise NoTracing(
            "strace is not installed; it records what a program asks of the file system (apt install strace)"
        )
    probe = [sys.executable, "-c", "pass"]
    done = subprocess.run(
        ["strace", "-f", "-y", "--seccomp-bpf", "-o", str(log), *probe], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise NoTracing(f"strace cannot trace here: {done.stderr.strip()[-OUTPUT_MAX:]}")


def _compare(recorded: dict[str, bytes | None], there: dict[str, bytes | None]) -> None:
    for path in sorted(recorded.keys() | there.keys()):
        if path.endswith(SHARED_MEMORY):
            continue
        if path not in there or path not in recorded or recorded[path] != there[path]:
            raise NotUnderstood(f"{path} is on the disk other than recorded")


def _text(escaped: str) -> str:
    return _bytes(escaped).decode()


def _bytes(escaped: str) -> bytes:
    return bytes.fromhex(escaped.replace("\\x", ""))


class _Open:
    """An open file below the root."""

    def __init__(self, inode: int, *, append: bool, path: str) -> None:
        self.inode = inode
        self.append = append
        self.path = path
        self.position = 0


class _Reader:
    """Follows the calls in the order in which they ended."""

    def __init__(self, before: Tree, root: Path, marks: Path) -> None:
        self.tree = before.copy()
        self.steps: list[Step] = []
        self.made: dict[int, bool] = {}
        self._root = str(root)
        self._marks = str(marks)
        self._open: dict[str, _Open] = {}
        self._begun: dict[str, tuple[str, int]] = {}
        self._follow: dict[str, Callable[[str, int, int], None]] = {
            **dict.fromkeys(("open", "openat", "creat"), self._opened),
            **dict.fromkeys(("write", "pwrite64", "writev", "pwritev", "pwritev2"), self._written),
            **dict.fromkeys(("truncate", "ftruncate", "fallocate"), self._resized),
            **dict.fromkeys(("fsync", "fdatasync"), self._synced),
            **dict.fromkeys(("rename", "renameat", "renameat2"), self._renamed),
            **dict.fromkeys(("link", "linkat"), self._linked),
            **dict.fromkeys(("unlink", "unlinkat", "rmdir"), self._unlinked),
            **dict.fromkeys(("mkdir", "mkdirat"), self._directory_made),
            "lseek": self._sought,
            "sendfile": self._sent,
            "mmap": self._mapped,
        }

    def read(self, lines: Iterable[str]) -> None:
        for line in lines:
            match = LINE.fullmatch(line.rstrip("\n"))
            if match is None:
                raise NotUnderstood(line[:OUTPUT_MAX])
            task, rest = match["task"], match["rest"]
            began = len(self.steps)
            if match["resumed"]:
                start, began = self._begun.pop(task)
                rest = start + rest
            elif rest.endswith(UNFINISHED):
                self._begun[task] = (rest.removesuffix(UNFINISHED), began)
                continue
            call = CALL.match(rest)
            if call and not call["answer"].startswith("-"):
                self._take(call["call"], call["arguments"], int(call["answer"], 0), began)

    def _take(self, call: str, arguments: str, answer: int, began: int) -> None:
        if call in self._follow:
            self._asked = call
            self._follow[call](arguments, answer, began)
        elif any(self._below(path) is not None for path in self._paths(arguments)):
            raise NotUnderstood(f"{call}({arguments[:OUTPUT_MAX]})")

    def _paths(self, arguments: str) -> list[str]:
        """Of calls that name files by path: each after its directory, if one is given."""
        paths, directory = [], ""
        for piece in re.finditer(f"{STRING.pattern}|{DIRECTORY}", arguments):
            name, opened = piece.groups()
            if name is None:
                directory = _text(opened)
            else:
                paths.append(os.path.normpath(os.path.join(directory, _text(name))))
        return paths or ([directory] if directory else [])

    def _below(self, path: str) -> str | None:
        """Below the root, or None."""
        if path == self._root:
            return ""
        return path[len(self._root) + 1 :] if path.startswith(self._root + "/") else None

    def _place(self, path: str) -> tuple[int, str] | None:
        """The directory's inode, and the name in it."""
        below = self._below(path)
        if below is None:
            return None
        directory, _, name = below.rpartition("/")
        return self.tree.inode_of(directory), name

    def _note(self, step: Entries | Data | Size) -> None:
        self.steps.append(step)
        if isinstance(step, Entries):
            self.tree.put(step)
        else:
            self.tree.write(step)

    def _entries(self, *changes: tuple[int, str, int | None]) -> None:
        names = ", ".join(f"{name}{'' if inode is not None else ' gone'}" for _, name, inode in changes)
        self._note(Entries(changes=changes, asked=f"{self._asked} {names}"))

    def _new(self, *, is_directory: bool) -> int:
        inode = self.tree.new_inode()
        self.made[inode] = is_directory
        if is_directory:
            self.tree.directories[inode] = {}
        else:
            self.tree.files[inode] = bytearray()
        return inode

    def _opened(self, arguments: str, answer: int, began: int) -> None:
        (path,) = self._paths(arguments)
        self._open.pop(str(answer), None)
        place = self._place(path) if self._below(path) != "" else None
        if place is None:
            if self._below(path) == "":
                self._open[str(answer)] = _Open(0, append=False, path=path)
            return
        directory, name = place
        flags = arguments.rpartition('"')[2]
        if name not in self.tree.directories[directory]:
            self._entries((directory, name, self._new(is_directory=False)))
        inode = self.tree.directories[directory][name]
        if "O_SYNC" in flags or "O_DSYNC" in flags or "O_TMPFILE" in flags:
            raise NotUnderstood(f"{path} opened with {flags}")
        if ("O_TRUNC" in flags or self._asked == "creat") and self.tree.files[inode]:
            self._note(Size(inode=inode, size=0))
        self._open[str(answer)] = _Open(inode, append="O_APPEND" in flags, path=path)

    def _file(self, arguments: str) -> _Open | None:
        """The open file of the first argument, if it is below the root."""
        match = DESCRIPTOR.match(arguments)
        if match is None or match["path"] is None or self._below(_text(match["path"])) is None:
            return None
        return self._open.get(match["number"])

    def _written(self, arguments: str, answer: int, began: int) -> None:
        match = DESCRIPTOR.match(arguments)
        if match and match["path"] and _text(match["path"]) == self._marks:
            self.steps.append(Mark(text="".join(map(_text, STRING.findall(arguments))).strip()))
            return
        file = self._file(arguments)
        if file is None:
            return
        content = b"".join(map(_bytes, STRING.findall(arguments)))[:answer]
        if self._asked.startswith("pwrite"):
            position = int(re.split(r",\s*", arguments)[3 if self._asked == "pwrite64" else 2])
        else:
            position = len(self.tree.files[file.inode]) if file.append else file.position
            file.position = position + answer
        self._note(Data(inode=file.inode, position=position, content=content))

    def _sought(self, arguments: str, answer: int, began: int) -> None:
        file = self._file(arguments)
        if file is not None:
            file.position = answer

    def _sent(self, arguments: str, answer: int, began: int) -> None:
        """sendfile(out, in, [offset], count): the content is read from where it came from."""
        target = self._file(arguments)
        if target is None or answer == 0:
            return
        _, source, offset, _ = re.split(r",\s*", re.sub(r"\[(\d+)\] => \[\d+\]", r"\1", arguments))
        match = DESCRIPTOR.match(source)
        assert match is not None
        path = _text(match["path"])
        below = self._below(path)
        content = (
            Path(path).read_bytes() if below is None else bytes(self.tree.files[self._open[match["number"]].inode])
        )
        start = int(offset.strip("[]"))
        self._note(Data(inode=target.inode, position=target.position, content=content[start : start + answer]))
        target.position += answer

    def _resized(self, arguments: str, answer: int, began: int) -> None:
        if self._asked == "truncate":
            place = self._place(self._paths(arguments)[0])
            inode = None if place is None else self.tree.directories[place[0]][place[1]]
        else:
            file = self._file(arguments)
            inode = None if file is None else file.inode
        if inode is None:
            return
        numbers = [int(number) for number in re.findall(r",\s*(\d+)\b", arguments)]
        size = numbers[-1]
        if self._asked == "fallocate":
            if not re.search(r",\s*0,", arguments):
                raise NotUnderstood(f"fallocate({arguments})")
            size = max(numbers[-2] + numbers[-1], len(self.tree.files[inode]))
        self._note(Size(inode=inode, size=size))

    def _synced(self, arguments: str, answer: int, began: int) -> None:
        file = self._file(arguments)
        if file is not None:
            self.steps.append(
                Sync(inode=file.inode, began=began, asked=f"{self._asked} {self._below(file.path) or '.'}")
            )

    def _renamed(self, arguments: str, answer: int, began: int) -> None:
        source, target = map(self._place, self._paths(arguments))
        if source is None and target is None:
            return
        if source is None or target is None or re.search(r"RENAME_(EXCHANGE|WHITEOUT)", arguments):
            raise NotUnderstood(f"{self._asked}({arguments})")
        self._entries((*source, None), (*target, self.tree.directories[source[0]][source[1]]))

    def _linked(self, arguments: str, answer: int, began: int) -> None:
        source, target = map(self._place, self._paths(arguments))
        if source is None and target is None:
            return
        if source is None or target is None:
            raise NotUnderstood(f"{self._asked}({arguments})")
        self._entries((*target, self.tree.directories[source[0]][source[1]]))

    def _unlinked(self, arguments: str, answer: int, began: int) -> None:
        place = self._place(self._paths(arguments)[0])
        if place is not None:
            self._entries((*place, None))

    def _directory_made(self, arguments: str, answer: int, began: int) -> None:
        place = self._place(self._paths(arguments)[0])
        if place is not None:
            self._entries((*place, self._new(is_directory=True)))

    def _mapped(self, arguments: str, answer: int, began: int) -> None:
        if "MAP_SHARED" not in arguments or "PROT_WRITE" not in arguments:
            return
        match = re.search(r"(\d+)<((?:\\x[0-9a-f]{2})*)>", arguments)
        path = _text(match[2]) if match else ""
        if self._below(path) is not None and not path.endswith(SHARED_MEMORY):
            raise NotUnderstood(f"{path} is written by mapping it")
