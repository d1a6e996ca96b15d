# shellcheck shell=bash
# Library of bash functions that run soft-iWARP guests under QEMU's software emulation. Source it.
#
#   guest_boot NAME TAP MAC IPV4/LEN IPV6/LEN   boots a guest on an existing TAP interface
#   guest_run NAME 'COMMAND' [SECONDS]          runs a command in it: prints its output, returns its code
#   guest_client NAME SECONDS OPTIONS           runs iwclient in it, killed when the time is up
#   guest_hold NAME OPTIONS                     starts an iwclient that holds its connection, waits until it does
#   guest_release NAME                          lets it go on: prints what it says, returns its code
#   guest_stop NAME                             stops it
#   guest_stop_all                              stops every guest of this shell
#
# GUEST_NETNS   network namespace of the TAP; empty: the caller's
# GUEST_IMAGE   directory made by prepare.sh; set by guest_boot when empty
# GUEST_LOGS    directory for console logs and the control line; must exist
#
# A command is one line of shell of at most 3500 bytes; a guest runs one at a time. Exit code 124: no answer in time;
# 125: guest gone.

declare -gA _guest_pid _guest_in _guest_out
_guest_here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

_guest_qemu() {
    local name=$1 tap=$2 mac=$3 ip4=$4 ip6=$5 control=$6
    local prefix=()
    [ -z "${GUEST_NETNS:-}" ] || prefix=(ip netns exec "$GUEST_NETNS")
    # A machine that could have a second CPU: for one that could not, QEMU leaves out the guest's memory
    # barriers, although its I/O thread shares the virtqueues, and a lost notification stops the NIC.
    # No offloads: every frame on the bridge is one that fits the MTU, checksums complete.
    local offloads=csum=off,gso=off,host_tso4=off,host_tso6=off,host_ecn=off,host_ufo=off
    offloads+=,guest_csum=off,guest_tso4=off,guest_tso6=off,guest_ecn=off,guest_ufo=off,mrg_rxbuf=off
    exec "${prefix[@]}" qemu-system-x86_64 -name "siw-$name" -accel tcg -machine q35 -smp 1,maxcpus=2 -cpu max -m 512 \
        -nodefaults -no-user-config -no-reboot -display none -monitor none \
        -kernel "$GUEST_IMAGE/vmlinux" -initrd "$GUEST_IMAGE/initramfs.gz" \
        -append "console=ttyS0 quiet panic=-1 mitigations=off net.ifnames=0 guest.ip4=$ip4 guest.ip6=$ip6" \
        -serial "file:$GUEST_LOGS/$name.console" \
        -chardev "pipe,id=control,path=$control" -serial chardev:control \
        -netdev "tap,id=net,ifname=$tap,script=no,downscript=no,vhost=off" \
        -device "virtio-net-pci,netdev=net,mac=$mac,romfile=,$offloads" \
        -device virtio-rng-pci \
        </dev/null >"$GUEST_LOGS/$name.qemu" 2>&1
}

guest_boot() {
    local name=$1 control line fd_in fd_out
    : "${GUEST_LOGS:?}"
    [ -n "${GUEST_IMAGE:-}" ] || GUEST_IMAGE=$("$_guest_here/prepare.sh") || return 1
    control=$GUEST_LOGS/$name.control
    mkfifo "$control.in" "$control.out" || return 1
    # Opened for reading and writing: neither side's open waits for the other.
    exec {fd_in}<>"$control.in" {fd_out}<>"$control.out"
    _guest_in[$name]=$fd_in _guest_out[$name]=$fd_out
    _guest_qemu "$@" "$control" &
    _guest_pid[$name]=$!
    local deadline=$((SECONDS + ${GUEST_BOOT_SECONDS:-120}))
    while [ $SECONDS -lt $deadline ]; do
        if read -r -t 1 -u "$fd_out" line; then
            [[ $line == *$'\001READY' ]] && return 0
        elif ! kill -0 "${_guest_pid[$name]}" 2>/dev/null; then
            break
        fi
    done
    echo "guest $name did not boot; see $GUEST_LOGS/$name.console and $GUEST_LOGS/$name.qemu" >&2
    return 1
}

guest_run() {
    local LC_ALL=C name=$1 command=$2 deadline=$((SECONDS + ${3:-120})) id line part='' got='' sent=0 again=0
    [ -n "${_guest_pid[$name]:-}" ] || return 125
    # The time, not a counter: a counter would stand still in a subshell.
    id=${EPOCHREALTIME//[.,]/}
    while [ $SECONDS -lt $deadline ]; do
        # The serial line may lose characters: an unconfirmed command is sent again.
        if [ -z "$got" ] && [ $SECONDS -ge $again ] && [ $sent -lt 8 ]; then
            printf '%s %s %s\n' "$id" "${#command}" "$command" >&"${_guest_in[$name]}"
            sent=$((sent + 1)) again=$((SECONDS + 5))
        fi
        # A read that times out leaves its bytes in `line`: they start the next line.
        if ! IFS= read -r -t 1 -u "${_guest_out[$name]}" line; then
            part+=$line
            kill -0 "${_guest_pid[$name]}" 2>/dev/null || return 125
            continue
        fi
        line=$part$line part=''
        case $line in
            $'\001'"GOT $id") got=yes && continue ;;
            $'\001GOT '*) continue ;;
            $'\001AGAIN') again=0 && continue ;;
        esac
        if [[ $line =~ ^(.*)$'\001'"EXIT "([0-9]+)" "([0-9]+)$ ]]; then
            # Ignores the answer to an earlier command that timed out.
            [ "${BASH_REMATCH[2]}" = "$id" ] || continue
            [ -z "${BASH_REMATCH[1]}" ] || printf '%s\n' "${BASH_REMATCH[1]}"
            return "${BASH_REMATCH[3]}"
        fi
        printf '%s\n' "$line"
    done
    return 124
}

guest_client() {
    local name=$1 seconds=$2 code
    shift 2
    guest_run "$name" "timeout -s KILL $seconds iwclient $*" $((seconds + 10))
    code=$?
    [ $code = 0 ] || echo "iwclient's exit code: $code"
    return $code
}

guest_hold() {
    local name=$1
    shift
    # The pipe is opened for reading and writing: neither the client nor `echo` waits for the other.
    guest_run "$name" "rm -f /tmp/go; mkfifo /tmp/go; : >/tmp/held; iwclient $* <>/tmp/go >/tmp/held 2>&1 & held=\$!" &&
        guest_run "$name" 'for i in $(seq 100); do grep -qE "HOLDING|RESULT" /tmp/held && break; sleep 0.1; done; grep -q HOLDING /tmp/held || { cat /tmp/held; false; }'
}

guest_release() { guest_run "$1" 'echo go >/tmp/go; wait $held; code=$?; cat /tmp/held; (exit $code)'; }

guest_stop() {
    local name=$1 fd
    [ -n "${_guest_pid[$name]:-}" ] || return 0
    kill "${_guest_pid[$name]}" 2>/dev/null
    wait "${_guest_pid[$name]}" 2>/dev/null
    for fd in "${_guest_in[$name]}" "${_guest_out[$name]}"; do
        exec {fd}>&-
    done
    unset "_guest_pid[$name]" "_guest_in[$name]" "_guest_out[$name]"
}

guest_stop_all() {
    local name
    for name in "${!_guest_pid[@]}"; do
        guest_stop "$name"
    done
}
