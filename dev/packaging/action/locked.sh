# Runs the commands under the lock. The token is in HASP_STORE, which hasp does not hand on to them.
set -euo pipefail

commands=$(mktemp "${RUNNER_TEMP:-/tmp}/locked.XXXXXX")
printf '%s\n' "$COMMANDS" >"$commands"
exec "$PROGRAM" run --require-store --with-parent --wait "$WAIT" --max-hold "$MOST" --note "$NOTE" -l "$LOCK" -- bash -eo pipefail "$commands"
