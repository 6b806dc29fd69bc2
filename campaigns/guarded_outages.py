"""The four stories on real brokers with the guard on, each way of trouble; prints what was seen and how long it took.

    python -m campaigns.guarded_outages --kafka 4.3.1 --troubles undisturbed late
    python -m campaigns.guarded_outages                # every version, every trouble: about a minute and a half each

Exit code 1 if one of them ends corrupt, with a setting that is not as it was found, or without what the guard must do and say.
See testbed/guarded_troubles.py. `internal…` are of Kafka's own topics (testbed/guarded_internal.py); `internal-unguarded` has
no guard, and must end corrupt.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from headstone.errors import Unfinished
from testbed.guarded import Guarded
from testbed.guarded_internal import INTERNAL_TROUBLES, UNGUARDED, play_internal
from testbed.guarded_troubles import TROUBLES, play_guarded
from testbed.maven import VERSIONS, kafka

EVERY_TROUBLE = [*TROUBLES, *INTERNAL_TROUBLES]


def summary(result: Guarded) -> dict[str, object]:
    return {
        "kafka": result.kafka,
        "trouble": result.trouble,
        "right": result.is_right,
        "corrupt": [outage.variant for outage in result.outages if outage.corrupt],
        "removed": result.removed,
        "not_restored": result.not_restored,
        "alarms": result.alarms,
        "seconds": result.seconds,
        "log_bytes": result.log_bytes,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", nargs="+", default=list(VERSIONS), help="versions (default: %(default)s)")
    parser.add_argument("--troubles", nargs="+", choices=EVERY_TROUBLE, default=EVERY_TROUBLE)
    parser.add_argument("--verbose", action="store_true", help="what the guard said")
    arguments = parser.parse_args()
    tried = [
        _as_expected(version, trouble, verbose=arguments.verbose)
        for version in arguments.kafka
        for trouble in arguments.troubles
    ]
    return 0 if all(tried) else 1


def _as_expected(version: str, trouble: str, *, verbose: bool) -> bool:
    """If one cannot finish, the others still run."""
    play = play_internal if trouble in INTERNAL_TROUBLES else play_guarded
    with tempfile.TemporaryDirectory() as root:
        try:
            result = play(kafka(version), Path(root), trouble, tell=lambda text: print(text, file=sys.stderr))
        except Unfinished as error:
            print(json.dumps({"kafka": version, "trouble": trouble, "right": False, "why": str(error)}), flush=True)
            return False
    print(json.dumps(summary(result)), flush=True)
    as_expected = result.is_right != (trouble == UNGUARDED)
    if verbose or not as_expected:
        print(result.log, file=sys.stderr)
    return as_expected


if __name__ == "__main__":
    sys.exit(main())
