"""Bodies of tasks for the tests of this folder: executors import this file, and nothing of pytest with it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from headstone.pipeline.progress import Meter
from headstone.storage.access import Access
from headstone.storage.stores import store_of

MACHINES = "machines"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadObject:
    access: Access
    bucket: str
    folder: str
    name: str
    size: int


def read_file(path: str, meter: Meter) -> bytes:
    return Path(path).read_bytes()


def this_machine() -> str:
    """The number of its mount namespace."""
    return "".join(filter(str.isdecimal, os.readlink("/proc/self/ns/mnt")))


def read_object(task: ReadObject, meter: Meter) -> bytes:
    """Leaves the name of its machine in the store: of two attempts of a task one answers, and both have been somewhere."""
    store = store_of(task.bucket, task.access)
    store.put(f"{task.folder}/{MACHINES}/{this_machine()}", b"")
    return store.read(f"{task.folder}/{task.name}", 0, task.size)
