# Several daemons of one script, each with its configuration $LAB/N.toml, its control socket $LAB/N.control and its log
# $LAB/N.log. Sourced after lab_open.

# Process of each daemon that runs, by N.
declare -A DAEMONS
start() { # N: starts daemon N, and waits until it answers
    ip netns exec "$NS" "$IWARPD" --config "$LAB/$1.toml" >>"$LAB/$1.log" 2>&1 &
    DAEMONS[$1]=$!
    for _ in $(seq 200); do
        "$IWARPCTL" --socket "$LAB/$1.control" status >/dev/null 2>&1
        case $? in 0 | 6) return 0 ;; esac
        kill -0 "${DAEMONS[$1]}" 2>/dev/null || break
        sleep 0.1
    done
    tail -n 20 "$LAB/$1.log"
    return 1
}
kill_daemons() { # those that still run
    local n
    for n in "${!DAEMONS[@]}"; do kill -KILL "${DAEMONS[$n]}" 2>/dev/null; done
}
AT_END+=(kill_daemons)
