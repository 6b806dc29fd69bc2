"""The entry point `headstone`: finds the verb, runs it, turns errors into messages and exit codes.

0 done and clean; 1 findings; 2 wrong usage or bad input; 3 could not finish. Catches broadly, as otherwise only the lake's
worker does.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from contextvars import copy_context

from headstone import __version__
from headstone.api.stopping import run_heard
from headstone.cli.configuration import apply_defaults, configuration_of
from headstone.cli.connections import exposed_secrets
from headstone.cli.leftovers import NOTHING, left_by
from headstone.cli.output import NotConfirmed, Output
from headstone.cli.parsing import FINDINGS, UNFINISHED, Parser, add_output_arguments, explain, sentence, what_to_do
from headstone.errors import HeadstoneError, Unfinished, UsageError
from headstone.interruption import Interrupted, check, given_up
from headstone.storage.error_texts import error_text
from headstone.storage.redaction import without_secrets

VERBS = {
    "demo": "take a one-command tour: compact a sample topic on local Spark, show the four corruptions, write a report",
    "synth": "write sample log directories; the same seed gives the same bytes",
    "inspect": "show what partitions hold: records, live keys, tombstones, markers, transactions, dirty ratio",
    "compact": "compact every partition found in log directories, on Spark",
    "audit": "compare the replicas of a cluster: do they tell readers the same story?",
    "reproduce": "show the four corruptions of compacted topics step by step, under Kafka's rules and under coordinated rules",
    "lake": "keep topics in object storage: ingest, compact, read, collect garbage",
    "guard": "watch a live cluster and hold compaction before an absent replica can miss a delete for good",
    "simulate": "run seeded random clusters with faults and check them for the four corruptions",
    "agent": "run beside a broker and report to the guard how far its replicas are really cleaned",
    "completion": "print a shell completion script",
}
WITH_ACTIONS = ("lake", "guard")
"""Verbs whose actions have options of their own."""
EXAMPLES = (
    "headstone demo",
    "headstone inspect /var/lib/kafka/data",
    "headstone compact /var/lib/kafka/data --out /tmp/compacted",
)


def parser(chosen: str | None = None) -> argparse.ArgumentParser:
    """With the arguments of one verb, which alone is imported, or of all verbs."""
    top = Parser(prog="headstone", description="Keeps compacted Kafka topics small and correct.")
    top.add_argument(
        "--version", action="version", version=f"headstone {__version__}", help="show the version and exit"
    )
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    for name, about in VERBS.items():
        verb = verbs.add_parser(name, help=about, description=sentence(about))
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
    """With `configuration`, and its defaults for options that the words leave open."""
    top = parser(words[0] if words else "")
    file = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    file.add_argument("--config")
    configuration = configuration_of(file.parse_known_args(words)[0].config, os.environ)
    apply_defaults(configuration, top, parser)
    arguments = top.parse_args(words)
    arguments.words = list(words)
    arguments.configuration = configuration
    return arguments


class _Call:
    """One call of `main`: the words, and what is known of the verb so far."""

    def __init__(self, words: list[str]) -> None:
        self._words = words
        self._prog = " ".join(["headstone", *(word for word in words[:1] if word in VERBS)])
        self._left = NOTHING

    def interrupted(self) -> str:
        return f"{self._prog}: interrupted; {self._left}"

    def run(self) -> int:
        try:
            return self._run()
        except Interrupted:
            _say(self.interrupted())
        except KeyboardInterrupt:  # another handler, in a process that is not ours
            _say(self.interrupted())
        except (HeadstoneError, OSError) as error:
            return self._failed(error)
        except Exception:
            if not given_up():  # else this is how cancelled work has ended
                _say(traceback.format_exc().rstrip())
                _say(f"{self._prog}: stopped by an unexpected error; {self._left}")
            else:
                _say(self.interrupted())
        return UNFINISHED

    def _run(self) -> int:
        arguments = parsed(self._words)
        # Not by the parsed verb: `lake topics` also has an argument of that name.
        self._prog = " ".join([self._prog, *filter(None, [getattr(arguments, "action", None)])])
        output = Output.of(arguments)
        for text in exposed_secrets(arguments):
            output.warn(text)
        check()
        self._left = left_by(arguments)
        return int(arguments.run(arguments, output))

    def _failed(self, error: HeadstoneError | OSError) -> int:
        if given_up() and isinstance(error, Unfinished | OSError) and not isinstance(error, NotConfirmed):
            _say(self.interrupted())
            return UNFINISHED
        if isinstance(error, OSError):
            _say(f"{self._prog}: {error_text(error)}")
            return UNFINISHED
        advice = f"\n{what_to_do(self._prog)}" if isinstance(error, UsageError) else ""
        _say(f"{self._prog}: {error}{advice}")
        return error.exit_code


def main(argv: Sequence[str] | None = None) -> int:
    call = _Call(sys.argv[1:] if argv is None else list(argv))
    return copy_context().run(_heard, call)


def _heard(call: _Call) -> int:
    work = call.run
    if "pyspark.sql.session" in sys.modules:  # else there can be no session
        from headstone.spark.inheriting import inheriting
        from headstone.spark.session import note_callers_session

        running = note_callers_session()
        work = call.run if running is None else inheriting(running, call.run)
    return run_heard(work, left_behind=call.interrupted)


def _say(text: str) -> None:
    with suppress(OSError):  # the terminal is gone; the exit code says enough
        print(without_secrets(text), file=sys.stderr, flush=True)


if __name__ == "__main__":
    from headstone.cli.start import start

    start()
