#!/bin/bash
# captures.sh [FOLDER]: the screens of `top`, `doctor` and `monitor` with a daemon that has traffic, on a terminal of 80
# columns and 24 rows, as text files. docs/observing.md and docs/installing.md have them, shortened.
# `make captures`.
source "$(dirname "$0")/lib.sh"

TO=${1:-target/captures}
mkdir -p "$TO" && TO=$(realpath "$TO")
lab_open ironwarp-captures

cat >"$LAB/iwarpd.toml" <<TOML
[memory]
hugepages = "prefer"
packet_buffers = 8192
file_prefix = "$NS"
[control]
socket = "$SOCKET"
[workers]
cores = [0]
idle = "adaptive"
idle_sleep_us_max = 1000
[[port]]
name = "p0"
driver = "tap"
interface = "iw0"
addresses = ["10.77.0.2/24", "fd77::2/64"]
[[listener]]
port = 7400
service = "region"
[[region]]
name = "lab"
size = "64M"
access = ["remote-read", "remote-write"]
[[region]]
name = "wal"
size = "2M"
access = ["remote-write"]
token = "open sesame"
TOML

quit() { echo "captures.sh: $*" >&2; exit 1; }
shown() { # NAME PATTERN KEYS…: types keys, waits for a line that matches, and writes the screen to a file
    local name=$1 pattern=$2
    shift 2
    terminal_keys "$@"
    becomes yes 30 terminal_has "$pattern" || {
        terminal_shows >&2
        quit "$name: the terminal does not show $pattern"
    }
    # A few samples more, so that rates and sparklines have a past.
    sleep "${SETTLE:-0}"
    terminal_shows | sed -e "s#$LAB/##g" -e "s#$LAB##g" >"$TO/$name.txt"
    echo "$TO/$name.txt"
}

command -v tmux >/dev/null || quit "tmux is missing: apt-get install tmux"
daemon_start "$LAB/iwarpd.toml" || exit 1
kernel_side iw0
terminal_open 80 24 || quit "no terminal"
iwarpctl=$(realpath "$IWARPCTL")
# The captures show the commands as a user types them.
mkdir "$LAB/bin" && ln -s "$iwarpctl" "$LAB/bin/iwarpctl"
terminal_keys "PATH=$LAB/bin:\$PATH IWARPCTL_SOCKET=$SOCKET; export IWARPCTL_SOCKET; cd $LAB" Enter

# Traffic: one peer that writes, one that reads, one that measures.
head -c 67108864 /dev/urandom >"$LAB/file"
while remote put "$LAB/file" 10.77.0.2:7400/lab; do :; done >/dev/null 2>&1 &
while remote get '[fd77::2]:7400/lab' "$LAB/got" --length 33554432; do :; done >/dev/null 2>&1 &
in_ns "$iwarpctl" remote ping 10.77.0.2:7400/lab --count 1000000000 >/dev/null 2>&1 &

SETTLE=12 shown top-connections '^[0-9]+ .* lab .* [0-9.]+ [kMG]?B/s' 'clear; iwarpctl top' Enter
shown top-workers '^WORKER' 1
shown top-ports '^NAME[^ ]* +LINK' 2
shown top-regions '^NAME[^ ]* +SIZE' 4
shown top-help 'any key closes this' '?'
terminal_keys q q

shown doctor 'errors [0-9]+, warnings [0-9]+' 'clear; iwarpctl doctor iwarpd.toml' Enter

terminal_keys 'clear; iwarpctl monitor' Enter
sleep 0.5
remote put "$LAB/file" 10.77.0.2:7400/nothing >/dev/null 2>&1
remote put "$LAB/file" '[fd77::2]:7400/wal' >/dev/null 2>&1
ctl region register scratch --size 2M --access remote-read >/dev/null
in_ns python3 dataplane/tests/trespass.py 10.77.0.2 7400 lab >/dev/null 2>&1
ctl region deregister scratch >/dev/null
SETTLE=1 shown monitor 'region removed' ''
terminal_keys C-c
