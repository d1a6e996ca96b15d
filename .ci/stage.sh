#!/bin/bash
# stage.sh NAME COMMAND…: runs a stage of `make test`, and says how long it took, and for how long it used a CPU. The
# stage fails after 40 minutes: it must not take the others' time.
# stage.sh --score: lists the stages that ran, the longest first, and last what failed; fails if something has.
set -uo pipefail
notes=target/stages

# failures STAGE: the checks and tests that failed, with the beginning of what each said; or the end of the output.
failures() {
    local shown
    echo "--- $1"
    shown=$(grep -aE -A5 '^FAIL |^ +FAIL \[|panicked at |^error' "$notes/.$1.out" | cut -c1-160 | head -n 16)
    if [ -n "$shown" ]; then echo "$shown"; else tail -n 8 "$notes/.$1.out" | cut -c1-160; fi
}

if [ "$1" = --score ]; then
    cat "$notes"/* | sort -k 3,3 -rn
    failed=$(grep -l FAILED "$notes"/* | xargs -rn 1 basename | tr '\n' ' ')
    [ -n "$failed" ] || { echo "all stages passed"; exit; }
    for name in $failed; do failures "$name"; done >&2
    echo "failed: $failed" >&2
    exit 1
fi

name=$1
shift
mkdir -p "$notes"
TIMEFORMAT='%0R s elapsed, %0U + %0S s of CPU'
{ time timeout --foreground -k 60 2400 "$@" 2>&1 | tee "$notes/.$name.out" >&3; } 3>&1 2>"$notes/.$name"
status=$?
result=passed
[ "$status" = 0 ] || result=FAILED
printf 'stage %-16s %s: %s\n' "$name:" "$(<"$notes/.$name")" "$result" | tee "$notes/$name"
rm -f "$notes/.$name"
exit "$status"
