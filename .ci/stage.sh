#!/bin/bash
# stage.sh NAME COMMAND…: runs a stage of `make test`, and says how long it took, and for how long it used a CPU.
# stage.sh --score: lists the stages that ran, the longest first; fails if one failed.
set -u
notes=target/stages

if [ "$1" = --score ]; then
    cat "$notes"/* | sort -k 3,3 -rn
    failed=$(grep -l FAILED "$notes"/* | xargs -rn 1 basename | tr '\n' ' ')
    [ -z "$failed" ] || { echo "failed: $failed" >&2; exit 1; }
    echo "all stages passed"
    exit
fi

name=$1
shift
mkdir -p "$notes"
TIMEFORMAT='%0R s elapsed, %0U + %0S s of CPU'
{ time "$@" 2>&3; } 3>&2 2>"$notes/.$name"
status=$?
result=passed
[ "$status" = 0 ] || result=FAILED
printf 'stage %-16s %s: %s\n' "$name:" "$(<"$notes/.$name")" "$result" | tee "$notes/$name"
rm -f "$notes/.$name"
exit "$status"
