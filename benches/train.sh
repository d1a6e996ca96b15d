#!/bin/bash
# train.sh [--or-plain]: builds the programs for installation, target/trained/*, with profile-guided optimization:
# builds them with counters, runs the load below, and builds them again with the recorded profile.
# It needs root, for hugepages and namespaces, the programs of `make build`, which the load uses, and llvm-profdata of
# this Rust. With --or-plain it builds the programs without a profile where that is missing; reports say "plain" then.
# The first run takes a quarter of an hour; later runs repeat only steps whose input has changed.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=$PWD/target/training
host=$(rustc -vV | sed -n 's/^host: //p')
tools=$(rustc --print sysroot)/lib/rustlib/$host/bin
mkdir -p "$folder"

installed=(iwarpd iwarpctl iwarp-nfsd iwarp-run iwarp-bench iwarp-manual)

# built PROFILE FLAGS BIN…: builds these programs in target/PROFILE; FLAGS is a list in TOML. Build scripts write no
# profile.
built() {
    local profile=$1 flags=$2
    shift 2
    LLVM_PROFILE_FILE=/dev/null cargo build --locked --profile "$profile" --workspace \
        --config "target.$host.rustflags=[$flags]" "${@/#/--bin=}"
}

# The libraries of unmodified programs are those of `make build`: the load does not run them.
with_libraries() { mkdir -p target/trained/lib && cp -r target/release/lib/ironwarp target/trained/lib/; }

# load COMMAND…: runs a part of the load; prints its output if it fails.
load() {
    echo "train: $*"
    "$@" >"$folder/log" 2>&1 || { cat "$folder/log" >&2; echo "train: failed: $*" >&2; exit 1; }
}

if [ ! -x "$tools/llvm-profdata" ]; then
    rustup component add llvm-tools || {
        echo "train: needs llvm-profdata of this Rust: rustup component add llvm-tools" >&2
        [ "${1:-}" = --or-plain ] || exit 1
        echo "train: builds the programs without a profile" >&2
        built trained "" "${installed[@]}"
        with_libraries
        exit
    }
fi

# A fixed commit name, so that a new commit alone does not change the programs.
IRONWARP_COMMIT=training built instrumented "\"-Cprofile-generate=$folder\"" iwarpd iwarp-bench
counted=$(cat target/instrumented/{iwarpd,iwarp-bench} "$0" | sha256sum | cut -c1-16)
if [ ! -e "$folder/$counted.profdata" ]; then
    rm -f "$folder"/*.profraw "$folder"/*.profdata
    .ci/hugepages.sh 800 || true
    export LLVM_PROFILE_FILE="$folder/%m.profraw" IWARPD=target/instrumented/iwarpd
    bench=target/instrumented/iwarp-bench
    load "$bench" write-bw -s 4k,64k -D 0.2
    load "$bench" read-bw -s 4k,64k -D 0.1
    load "$bench" send-bw -s 4k,64k -D 0.1
    load "$bench" write-bw -s 64k --crc off -q 16 -b -D 0.1
    load "$bench" msg-rate -D 0.2
    # Longer than the others: bulk moves millions of messages per second, and would outweigh the round trips.
    load "$bench" write-lat -s 64 -D 3
    load "$bench" read-lat -s 64 -D 1
    load "$bench" send-lat -s 64 -D 2
    load "$bench" lossy -D 0.1 --runs 1
    load "$bench" tcp-rx
    load "$bench" tcp-echo
    load "$bench" conns
    load dataplane/tests/demo.sh
    load dataplane/tests/load.sh
    "$tools/llvm-profdata" merge -o "$folder/merged" "$folder"/*.profraw
    mv "$folder/merged" "$folder/$counted.profdata"
fi
export IRONWARP_BUILD=trained
built trained "\"-Cprofile-use=$folder/$counted.profdata\"" "${installed[@]}"
with_libraries
