#!/bin/bash
# service-inside.sh: the test of the service under systemd. Runs as a unit of the container that deb.sh boots, writes
# its result to /root/result, and powers the container off.
exec >/root/result 2>&1
begin=$SECONDS

finish() {
    umount /sys/module
    systemctl poweroff
    exit
}
step() { echo "ok    $* ($((SECONDS - begin)) s)"; begin=$SECONDS; }
fail() { echo "FAIL  $*"; journalctl --unit iwarpd --no-pager --lines 40; finish; }
property() { systemctl show iwarpd --property "$1" --value; }
is() { [ "$2" = "$3" ] || fail "$1: $2, not $3"; }
becomes() { # VALUE SECONDS COMMAND…
    local want=$1 tries=$(($2 * 10)) try
    shift 2
    for try in $(seq "$tries"); do
        [ "$("$@")" = "$want" ] && return
        sleep 0.1
    done
    fail "$*: $("$@") after $((try / 10)) s, not $want"
}
put_get() {
    ip addr add 10.77.0.1/24 dev iw0
    head -c 8388608 /dev/urandom >/tmp/sent
    iwarpctl remote put /tmp/sent 10.77.0.2:7400/lab >/dev/null || fail put
    iwarpctl remote get 10.77.0.2:7400/lab /tmp/got --length 8M >/dev/null || fail get
    cmp /tmp/sent /tmp/got || fail "the bytes that come back are not those that were put"
}
# field THREAD NAME: a line of the status of a thread of the daemon
field() { awk -v name="$2:" '$1 == name { print $2 }' "/proc/$(property MainPID)/task/$1/status"; }
worker() { grep -lx worker-0 "/proc/$(property MainPID)"/task/*/comm | cut -d / -f 5; }

mkdir -p /mnt/sys
mount -t sysfs sysfs /mnt/sys
mount -o remount,rw /sys
mkdir -p /sys/module
mount --bind /mnt/sys/module /sys/module

systemctl start iwarpd || fail "systemctl start"
is "state after systemctl start" "$(property ActiveState)" active
is "status text" "$(property StatusText)" "serving on /run/iwarpd/control.sock"
put_get
step "systemctl start returns when the daemon serves; put and get"
is "capabilities of the control thread" "$(field "$(property MainPID)" CapEff)" 0000000000005000
is "capabilities of a worker" "$(field "$(worker)" CapEff)" 0000000000000000
is "system call filter of a worker" "$(field "$(worker)" Seccomp)" 2
systemd-analyze security --threshold=40 iwarpd >/tmp/security || fail "$(tail -n 1 /tmp/security)"
step "privileges: $(tail -n 1 /tmp/security | sed 's/.*level for/exposure of/; s/ [^ ]*$//')"

mkdir -p /etc/systemd/system/iwarpd.service.d
printf '[Service]\nWatchdogSec=2\n' >/etc/systemd/system/iwarpd.service.d/watchdog.conf
systemctl daemon-reload
systemctl restart iwarpd || fail "systemctl restart"
sleep 5
is "restarts of a daemon that polls" "$(property NRestarts)" 0
python3 /root/manager.py stop "$(worker)" 30 &
becomes 1 20 property NRestarts
becomes active 20 property ActiveState
put_get
step "the watchdog restarts a daemon with a worker that stands still; put and get"
systemctl stop iwarpd || fail "systemctl stop"
is "result" "$(property Result)" success
[ ! -e /run/iwarpd ] || fail "/run/iwarpd is left"
step "systemctl stop"
echo passed
finish
