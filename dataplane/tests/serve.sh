#!/bin/bash
# serve.sh: `iwarpctl serve` as a user without a privilege: regions of files and of memory, without a daemon, read and
# written from the loopback interface and from another network namespace, and by peers of iwarpd. `make serve`.
source "$(dirname "$0")/lib.sh"

LIMIT=60
COPY=${COPY:-${BUILT:-target/release}/examples/copy}
# `two.sh` names it; no program of this script runs by it.
RUN=true

lab_open ironwarp-serve
far_open

# A user who owns nothing but a folder, and may run the programs.
chmod 755 "$LAB"
cp "$IWARPCTL" "$COPY" "$LAB/"
mkdir "$LAB/own"
head -c 20000003 /dev/urandom >"$LAB/source"
truncate -s 20000003 "$LAB/own/image"
echo 'open sesame' >"$LAB/token"
chown -R 65534:65534 "$LAB/own"
chmod 644 "$LAB/source" "$LAB/token"

# serve OPTIONS…: starts a server of this user. Its process is $PID, its one line of JSON in $LAB/ready.
serve() {
    : >"$LAB/ready"
    ip netns exec "$NS" "${NOBODY[@]}" "$LAB/iwarpctl" -j serve "$@" >"$LAB/ready" 2>"$LAB/server.err" &
    PID=$!
    awaits "$PID" "$LAB/server.err" test -s "$LAB/ready"
}
# ends [SIGNAL]: ends the server, and fails if it does not end with 0 at once.
ends() {
    kill "-${1:-TERM}" "$PID"
    wait_at_most 2 "$PID"
}
# from NAMESPACE OPTIONS…: iwarpctl remote of the same user there.
from() { ip netns exec "$1" "${NOBODY[@]}" timeout "$LIMIT" "$LAB/iwarpctl" -j --timeout 3 remote "${@:2}"; }
# there_and_back NAMESPACE ADDRESS REGION: puts the file, gets it, and compares; measures round trips.
there_and_back() {
    local target="$2/$3" got="$LAB/own/got"
    rm -f "$got"
    from "$1" put "$LAB/source" "$target" --verify >"$LAB/out" || return 1
    from "$1" get "$target" "$got" --length 20000003 >"$LAB/out" || return 1
    cmp "$LAB/source" "$got" || return 1
    from "$1" ping "$target" --count 200 >"$LAB/out" && jq -e '.count == 200' "$LAB/out" >/dev/null
}
# refused CODE KIND COMMAND…: succeeds if the command fails so.
refused() {
    local code=$1 kind=$2 status=0
    shift 2
    "$@" >"$LAB/out" 2>"$LAB/err" || status=$?
    [ "$status" = "$code" ] && jq -e --arg kind "$kind" '.error.kind == $kind' "$LAB/err" >/dev/null && return
    echo "exit code $status:"
    cat "$LAB/out" "$LAB/err"
    return 1
}

# --- one server, both families, files and memory
RIGHTS=remote-read,remote-write
ready() {
    jq -e '.addresses == ["127.0.0.1:7400", "[::1]:7400"] and [.regions[].name] == ["image", "lab"]
        and .regions[0].bytes == 20000003 and .regions[1].file == null' "$LAB/ready" >/dev/null &&
        [ "$(wc -l <"$LAB/ready")" = 1 ]
}
check "a server of nobody's starts" \
    serve -r lab=64M -r "image=$LAB/own/image" -a "$RIGHTS" -l 127.0.0.1 -l ::1
check "its JSON is one line with addresses and regions" ready
for address in 127.0.0.1:7400 '[::1]:7400'; do
    for region in lab image; do
        check "put --verify, get and ping of $address/$region" there_and_back "$NS" "$address" "$region"
    done
done
check "the Writes of peers are in the file" cmp "$LAB/source" "$LAB/own/image"
at_once() { # N: clients at the same time, each with a place of its own
    local k pids=() failed=0
    for k in $(seq "$1"); do
        from "$NS" put "$LAB/token" "127.0.0.1:7400/lab+$((k * 4096))" --verify >"$LAB/out.$k" 2>&1 &
        pids+=($!)
    done
    for k in "${pids[@]}"; do wait "$k" || failed=$((failed + 1)); done
    [ "$failed" = 0 ] || { echo "$failed of $1 failed"; cat "$LAB"/out.*; return 1; }
}
check "twenty clients at once" at_once 20
check "an unknown region is refused" refused 4 no_such_object from "$NS" ping 127.0.0.1:7400/none
check "the loopback interface is reached from this machine alone" \
    refused 3 unreachable from "$NS-far" ping 10.79.0.1:7400/lab
text() { # for people: where, what, and the way to end it
    ip netns exec "$NS" "${NOBODY[@]}" "$LAB/iwarpctl" serve -r small=1k -l 127.0.0.1:0 >"$LAB/text" 2>&1 &
    local server=$!
    prints '^small  *1 KiB  *remote-read  *no  *-  *memory' "$LAB/text" || return 1
    grep -q '^serving at 127.0.0.1:[0-9]*; Ctrl-C ends it' "$LAB/text" || return 1
    kill -INT "$server"
    wait_at_most 2 "$server" && prints '^small  *0 B  *0 B' "$LAB/text"
}
check "the text says what is served, and at the end how much" text
cut_short() { # a file that becomes shorter ends the connection that reads beyond its end, and nothing else
    truncate -s 4096 "$LAB/own/image"
    refused 1 terminated from "$NS" get 127.0.0.1:7400/image "$LAB/own/got" || return 1
    from "$NS" get 127.0.0.1:7400/image "$LAB/own/got" --length 4096 >"$LAB/out" || return 1
    cmp -n 4096 "$LAB/source" "$LAB/own/got" && kill -0 "$PID"
}
check "a file that others cut short does not end the server" cut_short
client_dies() {
    local client
    # Not through `from`: the job must be the program itself.
    ip netns exec "$NS" "${NOBODY[@]}" "$LAB/iwarpctl" remote bench write 127.0.0.1:7400/lab --duration 30 \
        >"$LAB/out" 2>&1 &
    client=$!
    sleep 0.5
    kill -KILL "$client"
    wait "$client"
    there_and_back "$NS" 127.0.0.1:7400 lab
}
check "a client that is killed in mid-transfer leaves the server to others" client_dies
term_in_transfer() { # the client ends with an error, the server with 0
    local client status=0
    from "$NS" bench write 127.0.0.1:7400/lab --duration 30 >"$LAB/out" 2>&1 &
    client=$!
    sleep 0.5
    ends TERM || return 1
    wait "$client" || status=$?
    [ "$status" = 1 ] || { echo "the client ended with $status"; cat "$LAB/out"; return 1; }
}
check "SIGTERM in mid-transfer ends the server with 0, and the client with an error" term_in_transfer

# --- other addresses, conditions
conditions() {
    serve -r lab=64M -a "$RIGHTS" -l 10.79.0.1 -l '[fd79::1]:7401' --token-file "$LAB/token" --allow 10.79.0.0/24
}
check "a server with a token, a prefix, and addresses of its own" conditions
check "no token is refused" refused 5 not_permitted from "$NS-far" ping 10.79.0.1:7400/lab
with_token() { from "$NS-far" put "$LAB/source" 10.79.0.1:7400/lab --verify --token-file "$LAB/token" >"$LAB/out"; }
check "with the token, another machine writes and reads" with_token
check "another source is refused" \
    refused 5 not_permitted from "$NS-far" ping '[fd79::1]:7401/lab' --token-file "$LAB/token"
server_dies() { # the client ends with an error, and does not wait
    local client status=0
    from "$NS-far" bench read 10.79.0.1:7400/lab --duration 30 --token-file "$LAB/token" >"$LAB/out" 2>&1 &
    client=$!
    sleep 0.5
    kill -KILL "$PID"
    wait "$PID"
    wait_at_most 10 "$client" || status=$?
    [ "$status" = 1 ] || { echo "the client ended with $status"; cat "$LAB/out"; return 1; }
}
check "a server that is killed in mid-transfer is an error of the client" server_dies

# --- refusals of the server itself
as_nobody() { ip netns exec "$NS" "${NOBODY[@]}" timeout 5 "$LAB/iwarpctl" -j serve "$@"; }
check "a port below 1024 is refused" refused 5 not_permitted as_nobody -r lab=1M -l 127.0.0.1:80
not_writable() {
    refused 5 file as_nobody -r "lab=$LAB/source" -a "$RIGHTS" && grep -q 'the file must be writable' "$LAB/err"
}
check "a file that the user may not write is refused" not_writable
read_only() {
    serve -r "lab=$LAB/source" || return 1
    refused 5 not_permitted from "$NS" put "$LAB/token" 127.0.0.1:7400/lab || return 1
    from "$NS" get 127.0.0.1:7400/lab "$LAB/own/got" >"$LAB/out" || return 1
    cmp "$LAB/source" "$LAB/own/got"
}
check "the default is to read, also a file that the user may not write" read_only

# --- iwarpd as the peer: a program with a device of its own copies a region here to a region there
# shellcheck source=dataplane/tests/programs/two.sh
source dataplane/tests/programs/two.sh
ip -n "$NS" addr add 10.78.0.1/24 dev switch
printf '[[listener]]\nport = 7400\nservice = "region"\n' >>"$LAB/0.toml"
check "a daemon starts" start 0
copied() {
    "$IWARPCTL" --socket "$LAB/0.control" region register lab --size 32M --access "$RIGHTS" >"$LAB/out" || return 1
    ip netns exec "$NS" "${NOBODY[@]}" timeout "$LIMIT" "$LAB/copy" 127.0.0.1:7400/lab 10.78.0.10:7400/lab || return 1
    from "$NS" get 10.78.0.10:7400/lab "$LAB/own/got" --length 20000003 >"$LAB/out" || return 1
    cmp "$LAB/source" "$LAB/own/got"
}
check "connect_region reads from the server and writes to a region of iwarpd" copied
check "SIGINT ends the server with 0" ends INT
score
