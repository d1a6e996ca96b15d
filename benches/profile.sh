#!/bin/bash
# Counts instructions per FPDU of RDMA Writes by function, for initiator and target:
# benches/profile.sh [BYTES [MTU [MESSAGES [DEPTH]]]].
#
#   BENCH      the program (default: target/dist/iwarp-bench)
#   LINES_OF   counts the lines of the source files whose path ends with this, in all, in place of functions
#
# callgrind counts, so that the load of the machine does not matter. It emulates a processor without AVX-512 and does
# not model caches; for time, use `perf record -a` beside `iwarp-bench write-bw`.
set -euo pipefail
cd "$(dirname "$0")/.."
bytes=${1:-64k} mtu=${2:-1500} messages=${3:-1000} depth=${4:-128}
bench=${BENCH:-target/dist/iwarp-bench}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# valgrind has no room for the addresses that DPDK reserves for hugepages; without hugepages DPDK takes ordinary pages.
hidden='mount -t tmpfs none /sys/kernel/mm/hugepages && exec "$@"'
for side in initiator target; do
    unshare --mount bash -c "$hidden" profile valgrind --tool=callgrind \
        --callgrind-out-file="$folder/$side" --toggle-collect="*fpdus*${side}_poll*" \
        "$bench" fpdus -s "$bytes" -m "$mtu" -n "$messages" -t "$depth" --region 8M --json "$folder/$side.json" \
        >"$folder/$side.log" 2>&1 || { cat "$folder/$side.log" >&2; exit 1; }
    fpdus=$(sed -n 's/.*"fpdus": \([0-9]*\).*/\1/p' "$folder/$side.json")
    by="per FPDU, by function"
    [ -z "${LINES_OF:-}" ] || by="in all, by line"
    echo "# $side: instructions $by; $messages messages of $bytes at MTU $mtu, $fpdus FPDUs"
    if [ -n "${LINES_OF:-}" ]; then
        # A position is a line, or its distance from the one before; the line after a call is the callee's.
        awk -v file="$LINES_OF" '
            /^c?f[lie]=/ {
                number = $0; sub(/^c?f[lie]=\(/, "", number); sub(/\).*/, "", number)
                if (index($0, ") ")) { path = $0; sub(/^[^)]*\) /, "", path); name[number] = path }
                if ($0 ~ /^f/) counts = substr(name[number], length(name[number]) - length(file) + 1) == file
            }
            /^[-+*0-9]/ {
                line = $1 == "*" ? line : $1 ~ /^[-+]/ ? line + $1 : $1
                if (!callee) { all += $2; if (counts) own[line] += $2 }
                callee = 0
            }
            /^calls=/ { callee = 1 }
            END {
                printf "%12d  all\n", all
                for (line in own) printf "%12d  %s:%d\n", own[line], file, line
            }' "$folder/$side" | sort -t: -k2n
        continue
    fi
    # Sums the own instructions of each function. callgrind writes a name once, with a number for later lines, and the
    # line after a call has the instructions of the callee.
    awk -v fpdus="$fpdus" '
        /^c?fn=/ {
            number = $0; sub(/^c?fn=\(/, "", number); sub(/\).*/, "", number)
            if (index($0, ") ")) { text = $0; sub(/^[^)]*\) /, "", text); name[number] = text }
            if ($0 ~ /^fn=/) here = number
        }
        /^calls=/ { getline; next }
        /^[-+*0-9]/ { own[here] += $2; all += $2 }
        END {
            printf "%9.1f  all\n", all / fpdus
            for (number in own) if (own[number] * 1000 > all) printf "%9.1f  %s\n", own[number] / fpdus, name[number]
        }' "$folder/$side" | sort -rn
done
