"""The four stories on real brokers with the guard on, each way of trouble; prints what was seen and how long it took.

    python -m campaigns.guarded_outages --kafka 4.3.1 --troubles undisturbed late
    python -m campaigns.guarded_outages                # every version, every trouble: about a minute and a half each

Exit code 1 if one of them ends corrupt, or with a setting that is not as it was found. See testbed/guarded.py.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path

from testbed.guarded import TROUBLES, Guarded, play_guarded
from testbed.maven import VERSIONS, kafka


def summary(result: Guarded) -> dict[str, object]:
    return {
        "kafka": result.kafka,
        "trouble": result.trouble,
        "right": result.is_right,
        "corrupt": [outage.variant for outage in result.outages if outage.corrupt],
        "removed": result.removed,
        "not_restored": result.not_restored,
        "seconds": result.seconds,
        "log_bytes": result.log_bytes,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kafka", nargs="+", default=list(VERSIONS), help="versions (default: %(default)s)")
    parser.add_argument("--troubles", nargs="+", choices=list(TROUBLES), default=list(TROUBLES))
    parser.add_argument("--verbose", action="store_true", help="what the guard said")
    arguments = parser.parse_args()
    right = True
    for version in arguments.kafka:
        for trouble in arguments.troubles:
            with tempfile.TemporaryDirectory() as root:
                result = play_guarded(
                    kafka(version), Path(root), trouble, tell=lambda text: print(text, file=sys.stderr)
                )
            print(json.dumps(summary(result)), flush=True)
            if arguments.verbose or not result.is_right:
                print(result.said, file=sys.stderr)
            right = right and result.is_right
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
