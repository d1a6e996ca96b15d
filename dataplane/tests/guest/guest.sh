# shellcheck shell=bash
# Library of bash functions that talk to guests under QEMU's software emulation. Source it.
#
#   guest_launch NAME FUNCTION ARGUMENTS    boots a guest: FUNCTION starts QEMU; it is called with ARGUMENTS and the
#                                           path of the control line, which is a pair of named pipes
#   guest_run NAME 'COMMAND' [SECONDS]      runs a command in it: prints its output, returns its code
#   guest_stop NAME                         stops it
#   guest_stop_all                          stops every guest of this shell
#
# GUEST_LOGS    directory for console logs and the control line; must exist
#
# A command is one line of shell, of at most 3500 bytes; a guest runs one at a time. Exit code 124: no answer in time;
# 125: guest gone.

declare -gA _guest_pid _guest_in _guest_out

guest_launch() {
    local name=$1 control line fd_in fd_out
    shift
    : "${GUEST_LOGS:?}"
    control=$GUEST_LOGS/$name.control
    mkfifo "$control.in" "$control.out" || return 1
    # Opened for reading and writing: neither side's open waits for the other.
    exec {fd_in}<>"$control.in" {fd_out}<>"$control.out"
    _guest_in[$name]=$fd_in _guest_out[$name]=$fd_out
    "$@" "$control" &
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
    local LC_ALL=C name=$1 command=$2 deadline=$((SECONDS + ${3:-120})) id line part='' got='' sent=0 again=0 asked=0
    [ -n "${_guest_pid[$name]:-}" ] || return 125
    # The time, not a counter: a counter would stand still in a subshell.
    id=${EPOCHREALTIME//[.,]/}
    while [ $SECONDS -lt $deadline ]; do
        # Characters get lost on the way: what is not confirmed is said again.
        if [ -z "$got" ] && [ $SECONDS -ge $again ] && [ $sent -lt 8 ]; then
            printf '%s %s %s\n' "$id" "${#command}" "$command" >&"${_guest_in[$name]}"
            sent=$((sent + 1)) again=$((SECONDS + 5))
        fi
        # So does the end of the answer. A guest that is done with the command repeats it, and does not run this one.
        if [ -n "$got" ] && [ $SECONDS -ge $again ] && [ $asked -lt 30 ]; then
            printf '%s 10 (exit 124)\n' "$id" >&"${_guest_in[$name]}"
            asked=$((asked + 1)) again=$((SECONDS + 15))
        fi
        # A read that times out leaves what it has in `line`: it is the head of the next one.
        if ! IFS= read -r -t 1 -u "${_guest_out[$name]}" line; then
            part+=$line
            kill -0 "${_guest_pid[$name]}" 2>/dev/null || return 125
            continue
        fi
        line=$part$line part=''
        case $line in
            $'\001'"GOT $id") got=yes again=$((SECONDS + 15)) && continue ;;
            $'\001GOT '*) continue ;;
            $'\001AGAIN') again=0 && continue ;;
        esac
        if [[ $line =~ ^(.*)$'\001'"EXIT "([0-9]+)" "([0-9]+)$ ]]; then
            # The answer to an earlier command that ran out of time is not ours.
            [ "${BASH_REMATCH[2]}" = "$id" ] || continue
            [ -z "${BASH_REMATCH[1]}" ] || printf '%s\n' "${BASH_REMATCH[1]}"
            return "${BASH_REMATCH[3]}"
        fi
        printf '%s\n' "$line"
    done
    return 124
}

guest_stop() {
    local name=$1 fd
    [ -n "${_guest_pid[$name]:-}" ] || return 0
    kill "${_guest_pid[$name]}" 2>/dev/null
    wait "${_guest_pid[$name]}" 2>/dev/null
    for fd in "${_guest_in[$name]}" "${_guest_out[$name]}"; do
        exec {fd}>&-
    done
    unset "_guest_pid[$name]" "_guest_in[$name]" "_guest_out[$name]"
    # A guest of this name may be started again.
    rm -f "$GUEST_LOGS/$name.control.in" "$GUEST_LOGS/$name.control.out"
}

guest_stop_all() {
    local name
    for name in "${!_guest_pid[@]}"; do
        guest_stop "$name"
    done
}
