#!/usr/bin/env bash
# run.sh quick|test|long|all [flags of go test] packages
#
#   quick   without servers and the race detector
#   test    every store on one topology, with the race detector
#   long    what "test" leaves out: the tests that begin with testtier.Long
#   all     test and long in one run
#
# gotestsum runs them and prints what fails; this script chooses them, and says at the end how many
# did not run and why. AGAIN=N is for CI, whose machines are slow at times: see again below.
set -euo pipefail
gotestsum=gotest.tools/gotestsum@v1.13.0

tier=${1:-} && shift || true
flags=()
while [[ ${1:-} == -* ]]; do flags+=("$1") && shift; done
[ $# -gt 0 ] || { echo "usage: run.sh quick|test|long|all [-flag=value ...] packages" >&2; exit 2; }

# Longest first, as go test begins with those that it is given first, and one that came last would have
# the machine to itself: those with most test files, with the conformance suite, or with the commands.
packages=$(go list -f '{{.ImportPath}} {{.Dir}} {{len .TestGoFiles}} {{len .XTestGoFiles}} {{.XTestImports}}' "$@" | awk '
  { files = $3 + $4; more = /hasp\/drivertest[] ]/ || $1 ~ /\/(cmd\/hasp|hasp-torture)$/ ? 25 : 0 }
  files { print files + more, $1, $2 }' | sort -rn)

case $tier in
# Without servers the longest packages wait more than they compute: on two cores ten tests at once
# take 54 seconds, the default 64.
quick) flags=(-short -parallel=10 "${flags[@]}") && export HASP_NO_SERVERS=1 ;;
test) flags=(-race -short "${flags[@]}") ;;
all) flags=(-race "${flags[@]}") ;;
long)
  # go test chooses by name: elsewhere than at a test's beginning, the rest of that test would run twice.
  # And one pattern is for all packages: a name that is long in one and short in another runs twice.
  packages=$(while read -r n path dir; do ! grep -qs 'testtier\.Long(' "$dir"/*_test.go || echo "$n $path $dir"; done <<<"$packages")
  mapfile -t files < <(awk '{ print $3 }' <<<"$packages" | while read -r dir; do ls "$dir"/*_test.go; done)
  astray=$(awk '/testtier\.Long\(/ && last !~ /^func Test/ { print FILENAME ":" FNR } { last = $0 }' "${files[@]}")
  [ -z "$astray" ] || { echo "testtier.Long may only be the first statement of a test: $astray" >&2; exit 1; }
  names=$(awk '/testtier\.Long\(/ { sub(/^func /, "", last); sub(/\(.*/, "", last); print last } { last = $0 }' "${files[@]}" | sort -u | paste -sd '|')
  flags=(-race "-run=^($names)\$" "${flags[@]}")
  ;;
*) echo "no tier \"$tier\"" >&2; exit 2 ;;
esac

# On two cores a run takes as long as its processor time. When all tests have ended nothing is left to
# race, garbage may stand for longer, and a JVM that serves for seconds does not get back what it spends
# on its second compiler. (Benchmarks do not run here.)
export GORACE=atexit_sleep_ms=0 GOGC=400 JAVA_TOOL_OPTIONS='-XX:TieredStopAtLevel=1 -XX:+UseSerialGC'

events=$(mktemp)
trap 'rm -f "$events"; kill $(jobs -p) 2>/dev/null || true' EXIT
while sleep 60 &>/dev/null; do echo "      after $SECONDS s: $(grep -c '"pass".*"Test"' "$events") tests have passed"; done &

mapfile -t paths < <(awk '{ print $2 }' <<<"$packages")
rc=0
go run "$gotestsum" --format pkgname-and-test-fails --format-icons text --hide-summary skipped \
  --jsonfile "$events" -- "${flags[@]}" "${paths[@]}" || rc=$?

echo 'Not run:' # by the last message of each skipped test
awk -F '"' '$14 != "Test" { next }
  $8 == "output" && $20 ~ /^ +[A-Za-z0-9_]+\.go:[0-9]+: / {
    why = $0; sub(/.*"Output":" +[^ ]+ /, "", why); sub(/\\n"}$/, "", why); said[$12, $16] = why
  }
  $8 == "skip" { skipped[said[$12, $16]]++ }
  END { for (why in skipped) printf "%6d  %s\n", skipped[why], why }' "$events" | sort -rn

# again runs each test that failed alone, AGAIN times; all must pass. On two busy cores a server may
# answer one of 11,000 tests too late. But what may never happen is not asked a second time: a race, a
# panic, a time-out, two holders, a token that goes back (S1 and the like are the random programs' words);
# nor are more than five tests. A process that a test has started can race, too. gotestsum's
# --rerun-fails is content with one pass, and asks all again.
again() {
  local failed package names i
  failed=$(awk -F '"' '
    { text = substr($0, index($0, "\"Output\":") + 10) }
    $8 == "output" && text ~ /^(WARNING: DATA RACE|panic: |fatal error: )/ { never = 1 }
    $8 == "output" && text ~ /DATA RACE|^ *panic: |two (hold|believe)|token [0-9]+ after|overlap|(S[0-9]|exclusion|beliefs|tokens): / { worst[$12, $16] = 1 }
    $8 == "fail" && $14 == "Test" {
      if (($12, $16) in worst) never = 1
      split($16, root, "/")
      if (!seen[$12, root[1]]++) { n++; tests[$12] = tests[$12] "|" root[1] }
    }
    $8 == "fail" && $14 != "Test" && !($12 in tests) { never = 1 } # it was not built, or ended itself
    END { if (never || n > 5) exit 1; for (p in tests) print p, substr(tests[p], 2) }' "$events") || return 1
  while read -r package names; do
    echo "Again, alone, $AGAIN times: $names of $package"
    for ((i = 0; i < AGAIN; i++)); do # not -count: each in a process
      go test "${flags[@]}" -count=1 -run="^($names)\$" "$package" || return 1
    done
  done <<<"$failed"
}
if [ $rc != 0 ] && [ "${AGAIN:-0}" != 0 ] && again; then
  echo "Alone they pass: make steady looks for why." && rc=0
fi
exit $rc
