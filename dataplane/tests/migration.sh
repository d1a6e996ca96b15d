#!/bin/bash
# Live migration of a guest by QEMU's `rdma:`, from a QEMU on one daemon to a QEMU on another, both by iwarp-run. The
# guest counts on its serial line: the numbers of both consoles must follow each other, and the guest's memory must keep
# its bytes. `make migration`; needs root. Last line: `N passed, N failed`.
#
#   BOOT_SECONDS, MIGRATION_SECONDS   how long these may take (default 120, 60)
source "$(dirname "$0")/lib.sh"

RUN=${RUN:-${BUILT:-target/release}/iwarp-run}
guest_kind=migration
source dataplane/tests/guest/debian.sh

image=$(dataplane/tests/siw/prepare.sh) || exit 1
lab_open ironwarp-migration
source dataplane/tests/programs/two.sh

# The guest's files: a static busybox, and the program that counts.
build_guest() {
    mkdir -p "$LAB/root"/{bin,dev,proc,tmp}
    install -m 755 /bin/busybox "$LAB/root/bin/busybox"
    install -m 755 dataplane/tests/programs/counter-init.sh "$LAB/root/init"
    (cd "$LAB/root" && find . -print0 | cpio --null --quiet -o -H newc -R 0:0) >"$LAB/guest.cpio"
}

declare -A MACHINES
machine() { # N OPTIONS…: starts QEMU on daemon N; its console is N.console, and its monitor N.monitor
    local n=$1
    shift
    # The machine of ../siw/guest.sh, which says why, with a memory that a console fills in part.
    ip netns exec "$NS" "$RUN" --socket "$LAB/$n.verbs" qemu-system-x86_64 -accel tcg -machine q35 -smp 1,maxcpus=2 \
        -cpu max -m 192 -nodefaults -no-user-config -no-reboot -display none \
        -kernel "$image/vmlinux" -initrd "$LAB/guest.cpio" -append "console=ttyS0 quiet panic=-1 no_timer_check" \
        -serial "file:$LAB/$n.console" -monitor "unix:$LAB/$n.monitor,server,nowait" "$@" \
        </dev/null >"$LAB/$n.qemu" 2>&1 &
    MACHINES[$n]=$!
}
stop_machines() {
    local n
    for n in "${!MACHINES[@]}"; do kill "${MACHINES[$n]}" 2>/dev/null && wait "${MACHINES[$n]}" 2>/dev/null; done
    MACHINES=()
}
AT_END=(stop_machines "${AT_END[@]}")
# monitor N COMMAND: prints what QEMU's monitor answers, after its greeting and the echo of the command.
monitor() { printf '%s\n' "$2" | timeout 10 nc -U -q 1 "$LAB/$1.monitor" | tr -d '\r' | sed '1,2d'; }
count() { grep -c '^COUNT' "$LAB/$1.console" 2>/dev/null; }
counts_to() { # N COUNT SECONDS: waits until console N has this many numbers
    for _ in $(seq "$3"); do
        [ "$(count "$1")" -ge "$2" ] && return
        sleep 1
    done
    tail -n 5 "$LAB/$1.console" "$LAB/$1.qemu"
    return 1
}
migrated() { # HOST:PORT: from machine 0, until it is complete
    local status
    monitor 0 "migrate -d rdma:$1" >/dev/null
    for _ in $(seq "${MIGRATION_SECONDS:-60}"); do
        status=$(monitor 0 "info migrate" | sed -n 's/^Migration status: //p')
        case $status in
            completed*) monitor 0 "info migrate" | grep -E 'total time|downtime|transferred|throughput' && return ;;
            failed*) break ;;
        esac
        sleep 0.5
    done
    echo "status: $status"
    cat "$LAB/0.qemu" "$LAB/1.qemu"
    return 1
}
follow() { # the numbers of both consoles are 1, 2, 3 and so on; a number may lie on both
    cat "$LAB/0.console" "$LAB/1.console" | tr -d '\r' | sed -n 's/^COUNT //p' >"$LAB/counts"
    echo "$(wc -l <"$LAB/counts") numbers, $(count 1) of them after the migration"
    diff "$LAB/counts" <(seq "$(wc -l <"$LAB/counts")") | head -n 5
    cmp "$LAB/counts" <(seq "$(wc -l <"$LAB/counts")")
}
bytes_same() { grep -q 'BYTES SAME' "$LAB/1.console" && ! grep -h 'BYTES CHANGED' "$LAB/0.console" "$LAB/1.console"; }

# migration TITLE [CAPABILITY]: the whole of it
migration() {
    local n
    rm -f "$LAB"/*.console
    machine 0
    check "$1: the guest counts" counts_to 0 15 "${BOOT_SECONDS:-120}"
    machine 1 -incoming defer
    check "$1: the other QEMU waits" becomes 1 10 sh -c "test -S $LAB/1.monitor && echo 1"
    if [ -n "${2:-}" ]; then
        for n in 0 1; do monitor $n "migrate_set_capability $2 on" >/dev/null; done
        check "$1: both have $2" sh -c "for n in 0 1; do echo info migrate_capabilities |
            nc -U -q 1 $LAB/\$n.monitor | grep '$2: on' || exit 1; done"
    fi
    monitor 1 "migrate_incoming rdma:10.78.0.11:7788" >/dev/null
    check "$1: it is migrated" migrated 10.78.0.11:7788
    check "$1: it still counts" counts_to 1 25 60
    check "$1: the numbers follow each other" follow
    check "$1: its memory has the same bytes" bytes_same
    stop_machines
}

build_guest
for n in 0 1; do check "daemon $n starts" start "$n"; done
migration "pages on demand"
migration "all pages pinned" rdma-pin-all
left() { "$IWARPCTL" --socket "$LAB/$1.control" -j app list | jq length; }
for n in 0 1; do check "nothing is left on daemon $n" becomes 0 5 left "$n"; done
score
