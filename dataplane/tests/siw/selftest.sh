#!/usr/bin/env bash
# Validates the guest, the client and the server without the daemon: two soft-iWARP guests on one bridge,
# our server in one, our client in the other. Needs root. Last line: `N passed, N failed`.
source "$(dirname "$0")/../lib.sh"
source dataplane/tests/siw/guest.sh

lab_open ironwarp-siw-self
GUEST_NETNS=$NS GUEST_LOGS=$LAB
begin=$SECONDS

ip -n "$NS" link add br0 type bridge mcast_snooping 0
ip -n "$NS" link set br0 up
for tap in tap0 tap1; do
    in_ns ip tuntap add "$tap" mode tap
    ip -n "$NS" link set "$tap" master br0 up
done
guest_boot server tap0 52:54:00:77:00:02 10.77.0.2/24 fd77::2/64 || exit 1
guest_boot client tap1 52:54:00:77:00:03 10.77.0.3/24 fd77::3/64 || exit 1
echo "two guests booted in $((SECONDS - begin)) s"

# serve TAG OPTIONS: starts a server in its guest; its standard input stays open for `ask`.
serve() {
    local tag=$1
    shift
    guest_run server "mkfifo /tmp/in$tag; iwserver $* <>/tmp/in$tag >/tmp/out$tag 2>&1 &"
    guest_run server "for i in \$(seq 50); do grep -q LISTENING /tmp/out$tag && break; sleep 0.1; done; \
grep LISTENING /tmp/out$tag"
}
ask() {
    guest_run server ": >/tmp/out4; echo '$*' >/tmp/in4; \
for i in \$(seq 100); do grep RESULT /tmp/out4 && break; sleep 0.1; done; grep -q ' ok' /tmp/out4"
}

# try NAME COMMAND…: runs a check and prints the client's own lines after it.
try() {
    local failed=$FAILED
    check "$@"
    [ "$FAILED" != "$failed" ] || sed -n 's/^RESULT /        /p' "$LAB/check.out"
}

# siw as responder: the pause avoids its lost wake-up, and --peer-siw its short Read Responses.
client() { guest_client client 200 --peer-siw --settle 300 --timeout 20 --host 10.77.0.2 --port 7400 "$@"; }
not_client() { ! client "$@"; }

# siw closes TCP right after its Reject; the initiator then often loses the Reject's private data.
reject() {
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        client --expect-reject "$@" && return 0
    done
    return 1
}

serve 4 --listen 10.77.0.2 --port 7400 --region lab:67108864:rw --region lab-ro:1048576:r \
    --region lab-wo:1048576:w --region secret:1048576:rw:open-sesame || exit 1
serve 6 --listen fd77::2 --port 7400 --region six:1048576:rw || exit 1
secret=(--region secret --token open-sesame)

try "a slice of a region" client --region lab --size 100000 --ops write,read,mix
try "the whole region" client --region lab --ops write,read --seed 2
try "the server has it" ask check lab 2
try "a wrong byte is noticed" not_client --region lab --ops read --seed 3
try "four queue pairs" client --region lab --qps 4 --size 8388608 --rounds 2 --ops write,read,mix --seed 3
try "IPv6" client --host fd77::2 --region six --ops write,read,mix --seed 30
try "token" client "${secret[@]}" --ops write,read --seed 5
try "write-only grant" client --region lab-wo --access w --ops write --seed 6
try "the server has that too" ask check lab-wo 6
try "a fresh region is zero" client --region lab-ro --access r --ops read --seed 0

try "no such region" reject 1 --region nowhere
try "wrong token" reject 2 --region secret --token open-sesamE
try "no token" reject 2 --region secret
try "right not granted" reject 2 --region lab-ro --access rw
try "a grant is no reject" not_client --region lab --expect-reject 2
for kind in magic short truncated empty-name long-name long-token; do
    try "malformed request: $kind" reject 4 --region lab --malformed "$kind"
done

try "fill" client "${secret[@]}" --ops write,read --seed 9
# siw does not check bounds for wrapping, so write-wrap and read-wrap are left out.
for violation in write-past-end write-at-end write-before write-far read-past-end read-at-end read-before \
    read-far bad-stag-write bad-stag-read bad-key-write bad-key-read other-stream-write other-stream-read \
    closed-stream-write closed-stream-read; do
    try "$violation" client "${secret[@]}" --ops "$violation"
done
try "write on a read-only grant" client --region lab-ro --access r --ops forbidden-write
try "an allowed access is no violation" not_client --region lab --ops forbidden-read
try "region unchanged" client "${secret[@]}" --access r --ops read --seed 9
try "the server's bytes unchanged" ask check secret 9
try "read-only region unchanged" client --region lab-ro --access r --ops read --seed 0

after_deregistration() {
    guest_hold client --peer-siw --settle 300 --host 10.77.0.2 --port 7400 "${secret[@]}" --ops hold-write --seed 9 &&
        ask deregister secret && guest_release client
}
try "write after deregistration" after_deregistration
try "a deregistered region is gone" reject 1 "${secret[@]}"
try "still serving" client --region lab --size 1000000 --ops write,read --seed 20

echo "whole run $((SECONDS - begin)) s"
score
