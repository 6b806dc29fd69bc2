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

from headstone import __version__
from headstone.cli.configuration import apply_defaults, configuration_of
from headstone.cli.connections import exposed_secrets
from headstone.cli.output import Output
from headstone.cli.parsing import FINDINGS, UNFINISHED, Parser, add_output_arguments, explain, what_to_do
from headstone.cli.stopping import terminated_as_interrupted
from headstone.errors import HeadstoneError, UsageError
from headstone.storage.redaction import without_secrets

VERBS = {
    "demo": "a one-command tour: a sample topic compacted on local Spark, the four corruptions, a report with drawings",
    "synth": "write sample log directories, deterministic by seed",
    "inspect": "exact facts of partitions: records, live keys, tombstones, markers, transactions, dirty ratio",
    "compact": "compact every partition found in log directories, on Spark",
    "audit": "compare the replicas of a cluster: do they tell readers the same story?",
    "reproduce": "the four corruptions of compacted topics, step by step, by Kafka's rule and by the coordinated one",
    "lake": "topics in object storage: ingest, compact, read, collect garbage",
    "guard": "watch a live cluster and hold compaction before a replica that is away can miss a deletion for good",
    "simulate": "seeded random clusters with faults, checked for the four corruptions",
    "agent": "beside a broker: report to the guard how far its replicas really are cleaned",
    "completion": "write a script that lets a shell complete verbs and options",
}
WITH_ACTIONS = ("lake", "guard")
"""Verbs whose actions have their own options."""
EXAMPLES = (
    "headstone demo",
    "headstone inspect /var/lib/kafka/data",
    "headstone compact /var/lib/kafka/data --out /tmp/compacted",
)

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


def parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """With the arguments of one verb, which alone is imported, or of all."""
    top = Parser(prog="headstone", description="Keeps compacted Kafka topics small and correct.")
    top.add_argument(
        "--version", action="version", version=f"headstone {__version__}", help="show the version and exit"
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, about in VERBS.items():
        verb = verbs.add_parser(name, help=about, description=about + ".")
        if chosen not in (None, name):
            continue
        module = importlib.import_module(f"headstone.cli.{name}")
        module.add_arguments(verb)
        if name not in WITH_ACTIONS:
            explain(verb, module.EXAMPLES, module.EXIT_CODES)
            add_output_arguments(verb)
            verb.set_defaults(run=module.run)
    explain(top, EXAMPLES, {FINDINGS: "findings: a divergence, a violation, something unsafe"})
    return top


def parsed(words: Sequence[str]) -> argparse.Namespace:
    """With `configuration`, and with its defaults for what the words leave open."""
    top = parser(words[0] if words else "")
    file = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    file.add_argument("--config")
    configuration = configuration_of(file.parse_known_args(words)[0].config, os.environ)
    apply_defaults(configuration, top, parser)
    arguments = top.parse_args(words)
    arguments.configuration = configuration
    return arguments


def main(argv: Sequence[str] | None = None) -> int:
    words = sys.argv[1:] if argv is None else list(argv)
    prog = " ".join(["headstone", *(word for word in words[:1] if word in VERBS)])
    try:
        arguments = parsed(words)
        # Not by the parsed verb: `lake topics` has a word of that name too.
        prog = " ".join([prog, *filter(None, [getattr(arguments, "action", None)])])
        output = Output.of(arguments)
        for text in exposed_secrets(arguments):
            output.warn(text)
        with terminated_as_interrupted():
            return int(arguments.run(arguments, output))
    except UsageError as error:
        _say(f"{prog}: {error}\n{what_to_do(prog)}")
        return error.exit_code
    except HeadstoneError as error:
        _say(f"{prog}: {error}")
        return error.exit_code
    except KeyboardInterrupt:
        _say(f"{prog}: interrupted; {BEGUN}")
        return UNFINISHED
    except OSError as error:
        _say(f"{prog}: {os_error_text(error)}")
        return UNFINISHED
    except Exception:
        _say(traceback.format_exc().rstrip())
        _say(f"{prog}: stopped by an unexpected error; {BEGUN}")
        return UNFINISHED


def _say(text: str) -> None:
    print(without_secrets(text), file=sys.stderr, flush=True)


def os_error_text(error: OSError) -> str:
    """Which file, what is wrong with it, what to do."""
    what = OS_ADVICE.get(error.errno or 0) or error.strerror or str(error) or type(error).__name__
    return what if error.filename is None else f"{os.fsdecode(error.filename)}: {what}"


if __name__ == "__main__":
    sys.exit(main())
