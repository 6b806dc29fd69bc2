"""A broker whose clock is ahead of all others: a library loaded in front of libc shows its Java process another time.

Wall-clock time only; durations, which Java measures by another clock, do not change. Needs a C compiler, and says so.
"""

from __future__ import annotations

import shutil
import subprocess
from datetime import datetime
from pathlib import Path

from headstone.brokers.processes import Broker
from headstone.errors import Unfinished

SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

int clock_gettime(clockid_t which, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *)) dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(which, now);
    if (!failed && (which == CLOCK_REALTIME || which == CLOCK_REALTIME_COARSE)) now->tv_sec += AHEAD_SECONDS;
    return failed;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec precise;
    (void) zone;
    if (clock_gettime(CLOCK_REALTIME, &precise)) return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *now) {
    struct timespec precise;
    if (clock_gettime(CLOCK_REALTIME, &precise)) return (time_t) -1;
    if (now) *now = precise.tv_sec;
    return precise.tv_sec;
}
"""
LOGGED = "[%Y-%m-%d %H:%M:%S,%f"
"""How a line of a broker's own log begins."""


def set_ahead(broker: Broker, seconds: int) -> None:
    """Takes effect at the broker's next start."""
    library = _compiled(broker.root, seconds)
    broker.environment["LD_PRELOAD"] = str(library)


def check_ahead(broker: Broker, seconds: int) -> None:
    """Checks the broker's own log, because the library might have no effect."""
    stamped = [line.partition("]")[0] for line in broker.said().splitlines() if line.startswith("[")]
    ahead_seconds = (datetime.strptime(stamped[-1], LOGGED) - datetime.now()).total_seconds()
    if not seconds - 600 < ahead_seconds < seconds + 600:
        raise Unfinished(f"broker {broker.number}'s clock is {ahead_seconds:.0f} s ahead, it was to be {seconds} s")


def _compiled(folder: Path, seconds: int) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise Unfinished("a broker's clock is set ahead by a small C library, and there is no cc, gcc or clang on PATH")
    source, library = folder / "clock_ahead.c", folder / "clock_ahead.so"
    source.write_text(SOURCE)
    command = [
        compiler, "-O1", "-shared", "-fPIC", f"-DAHEAD_SECONDS={seconds}", "-o", str(library), str(source), "-ldl",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise Unfinished(f"{compiler} did not compile {source}:\n{done.stderr[-1500:]}")
    return library
