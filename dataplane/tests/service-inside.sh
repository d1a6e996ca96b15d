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
exposure() { tail -n 1 /tmp/security | sed 's/.*level for/exposure of/; s/ [^ ]*$//'; }
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
step "privileges: $(exposure)"

cat >>/etc/iwarpd/iwarpd.toml <<'TOML'
[log]
format = "journald"
[applications]
socket = "/run/iwarpd/verbs.sock"
TOML
systemctl restart iwarpd || fail "systemctl restart"
ip addr add 10.77.0.1/24 dev iw0
iwarpctl region register noted --size 1M --access remote-read >/dev/null || fail "region register"
# entry FIELD: of the journal's entry about the region
entry() {
    journalctl --unit iwarpd --output json IWARP_EVENT=region_registered IWARP_REGION=noted | jq -r ".$1" | tail -n 1
}
becomes 0 10 entry IWARP_UID
is "program of the entry" "$(entry SYSLOG_IDENTIFIER)" iwarpd
is "priority of the entry" "$(entry PRIORITY)" 6
step "an event is an entry of the journal, with its fields"

level() { iwarpctl -j log level | jq -r .level; }
pid=$(property MainPID)
sed -i 's/^format = "journald"/&\nlevel = "debug"/' /etc/iwarpd/iwarpd.toml
systemctl reload iwarpd || fail "systemctl reload"
is "log level after systemctl reload" "$(level)" debug
sed -i 's/^level = "debug"/level = "loud"/' /etc/iwarpd/iwarpd.toml
! systemctl reload iwarpd 2>/dev/null || fail "systemctl reload takes a configuration with a mistake"
is "log level after a refused reload" "$(level)" debug
sed -i '/^level = "loud"/d' /etc/iwarpd/iwarpd.toml
systemctl reload iwarpd || fail "systemctl reload"
is "process after the reloads" "$(property MainPID) $(property ActiveState)" "$pid active"
step "systemctl reload applies a configuration, and fails with one that is refused"

ibv_devices >/tmp/devices 2>&1 # fails: the machine has no device
! grep -q iwarp0 /tmp/devices || fail "the system's libibverbs shows iwarp0"
iwarp-run ibv_devices >/tmp/devices || fail "iwarp-run ibv_devices"
grep -q iwarp0 /tmp/devices || fail "$(cat /tmp/devices)"
iwarp-run ldd "$(command -v rping)" | grep -q '=> /usr/lib/ironwarp/' || fail "rping has the system's libraries"
iwarp-run rping -s -a 10.77.0.2 -C 10 -V >/tmp/rping 2>&1 &
server=$!
sleep 1
iwarp-run rping -c -a 10.77.0.2 -C 10 -V >/tmp/rping-client 2>&1 || fail "rping: $(cat /tmp/rping-client)"
wait "$server" || fail "rping -s: $(cat /tmp/rping)"
step "programs of Debian run on the installed libraries"

# The file system under the container has no file handles; a tmpfs has.
mkdir -p /srv/data
mount -t tmpfs tmpfs /srv/data
sed -i '/^\[tcp\]/,/^$/d' /etc/iwarpd/nfsd.toml
systemctl start iwarp-nfsd || { journalctl --unit iwarp-nfsd --no-pager --lines 20; fail "systemctl start iwarp-nfsd"; }
is "exports" "$(iwarpctl nfs exports -j | jq -rc '[.[].path]')" '["/data","/regions"]'
printf '[[export]]\npath = "/more"\ndirectory = "/srv/data"\n[[export.client]]\nprefix = "10.77.0.0/24"\n' \
    >>/etc/iwarpd/nfsd.toml
systemctl reload iwarp-nfsd || fail "systemctl reload iwarp-nfsd"
exports() { iwarpctl nfs exports -j | jq -rc '[.[].path] | sort'; }
becomes '["/data","/more","/regions"]' 10 exports
systemd-analyze security --threshold=40 iwarp-nfsd >/tmp/security || fail "$(tail -n 1 /tmp/security)"
systemctl stop iwarp-nfsd || fail "systemctl stop iwarp-nfsd"
is "result of iwarp-nfsd" "$(systemctl show iwarp-nfsd --property Result --value)" success
step "the NFS server starts, reloads its exports and stops; $(exposure)"

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
