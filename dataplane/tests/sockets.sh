#!/bin/bash
# rsockets and the preload library, by a program of ours whose every byte is compared: threads on one socket, random
# sizes, crowds of clients, and what calls return. `make sockets`.
#
#   SECONDS_OF_SIZES   seconds of random sizes, per kind of socket and place (default 2)
#   ROUNDS             runs of each row of threads, and of the long streams (default 1)
source "$(dirname "$0")/lib.sh"

RUN=${RUN:-${BUILT:-target/release}/iwarp-run}
SECONDS_OF_SIZES=${SECONDS_OF_SIZES:-2}
ROUNDS=${ROUNDS:-1}
LIMIT=$((SECONDS_OF_SIZES + 70))

[ -f /usr/include/rdma/rsocket.h ] || { echo "sockets: librdmacm-dev is missing" >&2; exit 1; }
lab_open ironwarp-sockets
source dataplane/tests/programs/two.sh

build() { # NAME FLAGS…
    cc -O1 -Wall -Wextra -Werror -pthread -o "$LAB/$1" dataplane/tests/programs/streams.c "${@:2}"
}
# Two kinds of one program: of rsockets, and of sockets under the preload library.
of_kind() { # KIND: the command
    if [ "$1" = rsockets ]; then echo "$LAB/rsockets"; else echo "--preload $LAB/sockets"; fi
}

SERVER=
stop_server() {
    [ -z "$SERVER" ] || { kill "$SERVER" && wait_at_most 10 "$SERVER"; } 2>/dev/null
    SERVER=
}
AT_END+=(stop_server)
serve() { # KIND
    stop_server
    # shellcheck disable=SC2046
    spawn "$LAB/server.out" ip netns exec "$NS" "$RUN" --socket "$LAB/0.verbs" $(of_kind "$1") serve 10.78.0.10
    SERVER=$PID
    prints listens "$LAB/server.out"
}
streams() { # KIND N ARGUMENTS…: a client on daemon N
    # shellcheck disable=SC2046
    on "$2" $(of_kind "$1") "${@:3}" || { tail -n 3 "$LAB/server.out"; return 1; }
}
rounds() { # KIND N COUNT HOW
    local _
    for _ in $(seq "$ROUNDS"); do streams "$1" "$2" threads 10.78.0.10 "$3" "$4" || return; done
}
whole() { # KIND N
    local _
    for _ in $(seq $((2 * ROUNDS))); do streams "$1" "$2" whole 10.78.0.10 || return; done
}
long() { # OPTIONS…: rstream, non-blocking, in large transfers
    local pid status=0
    ip netns exec "$NS" timeout -k 5 "$LIMIT" "$RUN" --socket "$LAB/0.verbs" rstream "$@" >"$LAB/server.out" 2>&1 &
    pid=$!
    sleep 0.5
    on 1 rstream "$@" -s 10.78.0.10 || status=1
    [ "$status" = 0 ] || kill "$pid" 2>/dev/null
    wait "$pid" && [ "$status" = 0 ]
}

for n in 0 1; do check "daemon $n starts" start "$n"; done
check "streams.c builds for rsockets" build rsockets -DRSOCKETS -lrdmacm
check "streams.c builds for sockets" build sockets
for kind in rsockets preload; do
    check "$kind: calls" streams $kind 0 calls 10.78.0.10
    check "$kind: the server starts" serve $kind
    for n in 1 0; do
        of=$([ "$n" = 1 ] && echo "two daemons" || echo "one daemon")
        for how in blocking poll select; do
            for count in 1 2 3 8; do
                check "$kind: $count threads on one socket, $how, $of" rounds $kind $n $count $how
            done
        done
        check "$kind: random sizes, $of" streams $kind $n sizes 10.78.0.10 "$SECONDS_OF_SIZES"
        check "$kind: more than the buffer has at a time, $of" whole $kind $n
        check "$kind: 200 connections of eight threads, a backlog of 5, $of" streams $kind $n crowd 10.78.0.10
    done
    stop_server
done
# A program that knows nothing of RDMA, with a backlog of 5.
requests() {
    python3 - <<'PYTHON'
import threading, urllib.request
failed = []
def come():
    for _ in range(25):
        try:
            with urllib.request.urlopen("http://10.78.0.10:7302/streams.c", timeout=20) as answer:
                assert answer.read() == open("dataplane/tests/programs/streams.c", "rb").read()
        except Exception as error:
            failed.append(error)
threads = [threading.Thread(target=come) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(failed)
raise SystemExit(bool(failed))
PYTHON
}
web() {
    stop_server
    spawn "$LAB/server.out" ip netns exec "$NS" "$RUN" --socket "$LAB/0.verbs" --preload \
        python3 -u -m http.server --bind 10.78.0.10 --directory dataplane/tests/programs 7302
    SERVER=$PID
    prints Serving "$LAB/server.out" && on 1 --preload bash -c "$(declare -f requests); requests"
    local status=$?
    stop_server
    return "$status"
}
check "http.server with --preload, 200 requests of eight threads" web

if command -v rstream >/dev/null; then
    # Small buffers are slow.
    count=$([ "$ROUNDS" = 1 ] && echo 30 || echo 200)
    for round in $(seq "$ROUNDS"); do
        check "rstream -T n -S 1048576 -C 200, $round" long -T n -S 1048576 -C 200
        check "rstream -T n -B 4096 -S 1048576 -C $count, $round" long -T n -B 4096 -S 1048576 -C "$count"
    done
else
    echo "not installed: rstream"
fi
for n in 0 1; do
    left() { "$IWARPCTL" --socket "$LAB/$n.control" -j app list | jq length; }
    check "nothing is left on daemon $n" becomes 0 5 left
done

score
