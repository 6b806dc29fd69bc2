"""The entry point `headstone`: finds the verb, runs it, turns errors into messages and exit codes.

0 done and clean; 1 findings; 2 wrong usage or bad input; 3 could not finish. Catches broadly, as
only the lake's worker does besides.
"""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from typing import NoReturn

from headstone import __version__
from headstone.errors import HeadstoneError

VERBS = {
    "demo": "a one-command tour: a sample topic compacted on local Spark, the four corruptions, a report with drawings",
    "synth": "write sample log directories, deterministic by seed",
    "inspect": "exact facts of partitions: records, live keys, tombstones, markers, transactions, dirty ratio",
    "compact": "compact every partition found in log directories, on Spark",
    "audit": "compare the replicas of a cluster: do they tell readers the same story?",
    "reproduce": "the four corruptions of compacted topics, step by step, by Kafka's rule and by the coordinated one",
    "lake": "topics in object storage: ingest, compact, read, collect garbage",
    "simulate": "seeded random clusters with faults, checked for the four corruptions",
}
WITH_ACTIONS = ("lake",)
"""Verbs whose actions have their own options."""


BEGUN = "what it had begun to change is finished or undone by the next run, the rest is as it was"
DISK_FULL = "the disk is full; make room and run again"
NOT_ALLOWED = "permission denied; run as the user that it belongs to (on a broker's machine, the broker's)"
OS_ADVICE = {
    errno.ENOSPC: DISK_FULL,
    errno.EDQUOT: DISK_FULL,
    errno.EACCES: NOT_ALLOWED,
    errno.EPERM: NOT_ALLOWED,
    errno.EROFS: "the file system is read-only; mount it writable, or name another place",
    errno.EIO: "the disk cannot read or write it; see the kernel's log for why, and restore the file from a replica",
    errno.EMFILE: "too many open files; raise the limit (ulimit -n)",
    errno.EISDIR: "a directory where a file is expected; move it out of the way",
    errno.ENOTDIR: "a file where a directory is expected; name a directory",
}


class Parser(argparse.ArgumentParser):
    """Its errors are one line: the usage of a verb with thirty options hides what was wrong."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message.removeprefix('argument ')} (see {self.prog} --help)\n")


def parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """With the arguments of one verb, which alone is imported, or of all."""
    top = Parser(prog="headstone", description="Keeps compacted Kafka topics small and correct.")
    top.add_argument("--version", action="version", version=f"headstone {__version__}")
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, about in VERBS.items():
        verb = verbs.add_parser(name, help=about, description=about + ".")
        if chosen not in (None, name):
            continue
        module = importlib.import_module(f"headstone.cli.{name}")
        if name not in WITH_ACTIONS:
            verb.add_argument(
                "--output", choices=("text", "json"), default="text", help="what goes to stdout (default text)"
            )
        module.add_arguments(verb)
        verb.set_defaults(run=module.run)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else list(argv)
    arguments = parser(words[0] if words else "").parse_args(words)
    try:
        return int(arguments.run(arguments))
    except HeadstoneError as error:
        print(f"headstone {arguments.verb}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"headstone {arguments.verb}: interrupted; {BEGUN}", file=sys.stderr)
        return 3
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 3
    except OSError as error:
        print(f"headstone {arguments.verb}: {os_error_text(error)}", file=sys.stderr)
        return 3
    except Exception:
        traceback.print_exc()
        print(f"headstone {arguments.verb}: stopped by an unexpected error; {BEGUN}", file=sys.stderr)
        return 3


def os_error_text(error: OSError) -> str:
    """Which file, what is wrong with it, what to do."""
    what = OS_ADVICE.get(error.errno or 0) or error.strerror or str(error) or type(error).__name__
    return what if error.filename is None else f"{os.fsdecode(error.filename)}: {what}"


if __name__ == "__main__":
    sys.exit(main())
