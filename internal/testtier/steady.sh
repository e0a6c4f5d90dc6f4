#!/usr/bin/env bash
# steady.sh RUNS LOAD DISK, and then the arguments of run.sh: the tests so often, beside LOAD busy
# processes, the run DISK (0: none) beside a file that is written and synced all the time. It finds tests
# that depend on how fast the machine is, and ends with the first run that fails.
set -euo pipefail
runs=$1 load=$2 disk=$3 && shift 3
tier=$1 && shift

file=$(mktemp)
trap 'kill $(jobs -p) 2>/dev/null || true; rm -f "$file"' EXIT
for ((i = 0; i < load; i++)); do while :; do :; done & done
for ((run = 1; run <= runs; run++)); do
  if ((run == disk)); then # what fails (a disk that is full) ends it
    while dd if=/dev/zero of="$file" bs=1M count=2000 conv=fsync status=none; do :; done &
    writer=$!
  fi
  AGAIN=0 "$(dirname "$0")"/run.sh "$tier" -count=1 "$@" # else go test prints what it remembers
  echo "run $run of $runs beside $load busy processes, $SECONDS s in all"
  if ((run == disk)); then kill "$writer"; fi
done
