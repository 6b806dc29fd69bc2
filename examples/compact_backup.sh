#!/usr/bin/env bash
# Compacts a copy of a Kafka log directory (a backup, a volume snapshot) and proves that no live key was lost.
#
#     examples/compact_backup.sh [LOG_DIRECTORY [OUT_DIRECTORY]]
#
# Without arguments it makes a sample first and throws the result away. Exit 0 if every partition has as many live keys
# after as before; 1 if not; else what headstone answered.
set -euo pipefail

PATH="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)/.venv/bin:$PATH"
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

backup=${1:-$place/backup}
out=${2:-$place/compacted}
if [ $# -eq 0 ]; then
    headstone synth "$backup" --topic orders --partitions 2 --records 20000 --keys 4000 --tombstones 0.05 \
        --transactions 0.3 --codec lz4
fi

live_keys() {
    headstone inspect "$1" --output json | python3 -c '
import json, sys
for p in sorted(json.load(sys.stdin)["partitions"], key=lambda p: p["partition"]):
    print(p["partition"], p["keys"], "live keys")'
}

live_keys "$backup" > "$place/before"
headstone compact "$backup" --out "$out"
live_keys "$out" > "$place/after"

if ! diff "$place/before" "$place/after" >&2; then
    echo "live keys differ: keep the backup, do not use $out" >&2
    exit 1
fi
cat "$place/after"
