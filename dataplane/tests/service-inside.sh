#!/bin/bash
# service-inside.sh: the test of the services under systemd. Runs as a unit of the container that deb.sh boots, with the
# packages installed, writes its result to /root/result, and powers the container off.
exec >/root/result 2>&1
begin=$SECONDS
POOL=/sys/kernel/mm/hugepages/hugepages-2048kB
CONFIG=/etc/iwarpd/iwarpd.toml
export DEBIAN_FRONTEND=noninteractive

finish() { systemctl poweroff; exit; }
step() { echo "ok    $* ($((SECONDS - begin)) s)"; begin=$SECONDS; }
fail() {
    echo "FAIL  $*"
    journalctl --unit iwarpd --unit iwarp-nfsd --no-pager --lines 40
    finish
}
property() { systemctl show "${2:-iwarpd}" --property "$1" --value; }
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
# serves: waits for the daemon, degraded or not.
serves() { iwarpctl status --wait 20 >/dev/null || [ $? = 6 ] || fail "iwarpctl status --wait"; }
lab() { # the kernel's end of the TAP, and a region
    ip addr replace 10.77.0.1/24 dev iw0
    iwarpctl region register lab --size 16M --access remote-read,remote-write >/dev/null || fail "region register"
}
put_get() {
    lab
    head -c 8388608 /dev/urandom >/tmp/sent
    iwarpctl remote put /tmp/sent 10.77.0.2:7400/lab >/dev/null || fail put
    iwarpctl remote get 10.77.0.2:7400/lab /tmp/got --length 8M >/dev/null || fail get
    cmp /tmp/sent /tmp/got || fail "the bytes that come back are not those that were put"
}
# field THREAD NAME: a line of the status of a thread of the daemon
field() { awk -v name="$2:" '$1 == name { print $2 }' "/proc/$(property MainPID)/task/$1/status"; }
exposure() { tail -n 1 /tmp/security | sed 's/.*level for/exposure of/; s/ [^ ]*$//'; }
worker() { grep -lx worker-0 "/proc/$(property MainPID)"/task/*/comm | cut -d / -f 5; }
# drop_in [LINE…]: lines of [Service] for the unit until the next call.
drop_in() {
    mkdir -p /etc/systemd/system/iwarpd.service.d
    printf '%s\n' '[Service]' "$@" >/etc/systemd/system/iwarpd.service.d/test.conf
    systemctl daemon-reload
    systemctl reset-failed
}

# --- as installed
mkdir /root/pool
mount --bind /root/pool $POOL
echo 7 >$POOL/nr_hugepages
echo 0 | tee $POOL/free_hugepages >$POOL/resv_hugepages
is "pool of hugepages before" "$(cat $POOL/nr_hugepages)" 7
systemctl start --no-block iwarpd
serves
is "state of the unit once \`status --wait\` returns" "$(property ActiveState)" active
is "status text" "$(property StatusText)" "serving on /run/iwarpd/control.sock"
is "regions of the installed configuration" "$(iwarpctl -j region list)" '[]'
# It was raised, and by no more than is missing.
needed=$(iwarpctl -j config check $CONFIG | jq .hugepages)
is "pool of hugepages after a start" "$(cat $POOL/nr_hugepages)" $((7 + needed))
put_get
step "iwarpd serves as it is installed, and its hugepages are reserved; put and get"
is "capabilities of the control thread" "$(field "$(property MainPID)" CapEff)" 0000000000005000
is "capabilities of a worker" "$(field "$(worker)" CapEff)" 0000000000000000
is "system call filter of a worker" "$(field "$(worker)" Seccomp)" 2
systemd-analyze security --threshold=40 iwarpd >/tmp/security || fail "$(tail -n 1 /tmp/security)"
step "privileges: $(exposure)"
# The findings depend on the machine; an error would have kept the daemon from starting.
iwarpctl doctor >/tmp/doctor || [ $? = 6 ] || fail "doctor: $(cat /tmp/doctor)"

# Each shell loads the installed completion by itself, and offers the daemon's regions. A daemon that does not answer
# within half a second completes nothing, so that a shell on a busy machine gets further attempts.
export HOME=/tmp/home # which fish fills
in_bash() {
    local offered
    offered=$(bash --norc -ic 'source /usr/share/bash-completion/bash_completion; _completion_loader iwarpctl
        COMP_WORDS=(iwarpctl region show la) COMP_CWORD=3; _clap_complete_iwarpctl iwarpctl la show
        echo "${COMPREPLY[@]}"' 2>/dev/null)
    echo "${offered%% }"
}
in_fish() { fish -c 'complete -C "iwarpctl region show la"' | cut -f1; }
in_zsh() {
    local offered
    # shellcheck disable=SC2016 # expanded by zsh
    offered=$(zsh -f -c 'autoload -U compinit; compinit -D -u; [[ $_comps[iwarpctl] == _iwarpctl ]] || exit 1
        _describe() { print -l -- ${(P)@[-1]} }; words=(iwarpctl region show la); CURRENT=4; _iwarpctl')
    echo "${offered%%:*}"
}
for shell in bash fish zsh; do
    for _ in $(seq 5); do
        offered=$("in_$shell")
        [ "$offered" != lab ] || break
    done
    is "$shell" "$offered" lab
done
step "doctor finds no error; bash, fish and zsh complete region names"

# --- journal
iwarpctl remote get 10.77.0.2:7400/nothing /tmp/nothing --length 1 2>/dev/null && fail "a region that is not there"
warning() { # FIELD: of the warning about the refused region
    journalctl --unit iwarpd --priority warning --output json |
        jq -r "select(.MESSAGE | test(\"no such region\")) | .$1" | tail -n 1
}
becomes 4 10 warning PRIORITY
is "time in front of a message in the journal" "$(warning MESSAGE | grep -cE '^[0-9]{4}-')" 0
journalctl --unit iwarpd --priority warning | grep -q "ready" && fail "information has the priority of a warning"
step "warnings have their priority in the journal, and one time"
cat >>$CONFIG <<'TOML'
[log]
format = "journald"
[applications]
socket = "/run/iwarpd/verbs.sock"
TOML
# A pool that is larger than needed stays as it is.
echo 5000 | tee $POOL/nr_hugepages >$POOL/free_hugepages
systemctl restart iwarpd || fail "systemctl restart"
is "pool of hugepages of an operator after a start" "$(cat $POOL/nr_hugepages)" 5000
lab
# entry FIELD: of the journal's entry about the region
entry() {
    journalctl --unit iwarpd --output json IWARP_EVENT=region_registered IWARP_REGION=lab | jq -r ".$1" | tail -n 1
}
becomes 0 10 entry IWARP_UID
is "program of the entry" "$(entry SYSLOG_IDENTIFIER)" iwarpd
is "priority of the entry" "$(entry PRIORITY)" 6
step "an event is an entry of the journal, with its fields; a large pool of hugepages stays"

# --- reload
level() { iwarpctl -j log level | jq -r .level; }
pid=$(property MainPID)
sed -i 's/^format = "journald"/&\nlevel = "debug"/' $CONFIG
systemctl reload iwarpd || fail "systemctl reload"
is "log level after systemctl reload" "$(level)" debug
sed -i 's/^level = "debug"/level = "loud"/' $CONFIG
! systemctl reload iwarpd 2>/dev/null || fail "systemctl reload takes a configuration with a mistake"
is "log level after a refused reload" "$(level)" debug
sed -i '/^level = "loud"/d' $CONFIG
systemctl reload iwarpd || fail "systemctl reload"
is "process after the reloads" "$(property MainPID) $(property ActiveState)" "$pid active"
step "systemctl reload applies a configuration, and fails with one that is refused"

# --- programs
ibv_devices >/tmp/devices 2>&1 # fails: the machine has no device
! grep -q iwarp0 /tmp/devices || fail "the system's libibverbs shows iwarp0"
iwarp-run ibv_devices >/tmp/devices || fail "iwarp-run ibv_devices"
grep -q iwarp0 /tmp/devices || fail "$(cat /tmp/devices)"
iwarp-run ldd "$(command -v rping)" | grep -q '=> /usr/lib/ironwarp/' || fail "rping has the system's libraries"
timeout 60 iwarp-run rping -s -a 10.77.0.2 -C 10 -V >/tmp/rping 2>&1 &
server=$!
sleep 1
iwarp-run rping -c -a 10.77.0.2 -C 10 -V >/tmp/rping-client 2>&1 || fail "rping: $(cat /tmp/rping-client)"
wait "$server" || fail "rping -s: $(cat /tmp/rping)"
step "programs of Debian run on the installed libraries"
read -ra telemetry < <(sed -n 's/^# \(.*dpdk-telemetry.py.*\)/\1/p' /usr/share/doc/ironwarp/observing.md)
printf '/iwarp/stats,tcp\nquit\n' | env "${telemetry[@]}" >/tmp/telemetry 2>&1
grep -q '"segments_out": ' /tmp/telemetry || fail "${telemetry[*]}: $(cat /tmp/telemetry)"
step "dpdk-telemetry.py, as it is documented"

# --- the NFS server
! systemctl start iwarp-nfsd 2>/dev/null || fail "iwarp-nfsd starts without an export"
sleep 3
is "restarts and exit status of iwarp-nfsd as it is installed" \
    "$(property NRestarts iwarp-nfsd) $(property ExecMainStatus iwarp-nfsd)" "0 2"
journalctl --unit iwarp-nfsd --no-pager | grep -q 'export' || fail "iwarp-nfsd does not say what it lacks"
step "iwarp-nfsd as it is installed fails once, with the reason"
# The file system under the container has no file handles; a tmpfs has.
mkdir -p /srv/data
mount -t tmpfs tmpfs /srv/data
export_of() {
    printf '[[export]]\npath = "%s"\n%s\n[[export.client]]\nprefix = "10.77.0.0/24"\n' "$@" >>/etc/iwarpd/nfsd.toml
}
export_of /data 'directory = "/srv/data"'
export_of /regions 'regions = "*"'
systemctl start iwarp-nfsd || fail "systemctl start iwarp-nfsd"
is "exports" "$(iwarpctl nfs exports -j | jq -rc '[.[].path]')" '["/data","/regions"]'
export_of /more 'directory = "/srv/data"'
systemctl reload iwarp-nfsd || fail "systemctl reload iwarp-nfsd"
exports() { iwarpctl nfs exports -j | jq -rc '[.[].path] | sort'; }
becomes '["/data","/more","/regions"]' 10 exports
cp /etc/iwarpd/nfsd.toml /root/nfsd.toml
export_of /more 'directory = "/srv"'
! systemctl reload iwarp-nfsd 2>/dev/null || fail "systemctl reload takes exports of which two have one path"
is "exports after a refused reload" "$(exports)" '["/data","/more","/regions"]'
cp /root/nfsd.toml /etc/iwarpd/nfsd.toml
systemd-analyze security --threshold=40 iwarp-nfsd >/tmp/security || fail "$(tail -n 1 /tmp/security)"
systemctl stop iwarpd || fail "systemctl stop iwarpd"
sleep 3
is "iwarp-nfsd and iwarpd after the stop of iwarpd" \
    "$(property ActiveState iwarp-nfsd) $(property Result iwarp-nfsd) $(property ActiveState)" \
    "inactive success inactive"
step "the NFS server starts, reloads its exports, not those with a mistake, and stops with iwarpd; $(exposure)"

# --- a start that fails, and one that takes long
cp $CONFIG /tmp/good
echo 'bogus = 1' >>$CONFIG
! systemctl start iwarpd 2>/dev/null || fail "iwarpd starts with a mistake in its configuration"
sleep 3
is "restarts and exit status with a mistake in the configuration" \
    "$(property NRestarts) $(property ExecMainStatus)" "0 2"
sed 's/^cores = .*/cores = [1023]/' /tmp/good >$CONFIG
drop_in RestartSec=50ms
! systemctl start iwarpd 2>/dev/null || fail "iwarpd starts on a core that is not there"
becomes failed 20 property ActiveState
is "restarts and exit status when the machine lacks something" \
    "$(property NRestarts) $(property ExecMainStatus)" "10 1"
cp /tmp/good $CONFIG
step "a mistake in the configuration ends the attempts at once, a machine that lacks something soon"
# Regions on ordinary pages take a second and more for each GiB.
sed 's/^hugepage_limit = .*/hugepage_limit = "4G"/' /tmp/good >$CONFIG
printf '[[region]]\nname = "large"\nsize = "2G"\naccess = ["remote-read"]\n' >>$CONFIG
drop_in TimeoutStartSec=1s ExecStartPre=
# The limit also holds for what the kernel does before the daemon runs, which takes a busy machine a second at times.
for attempt in 1 2 3; do
    systemctl start iwarpd && break
    [ "$attempt" -lt 3 ] || fail "a start of more than TimeoutStartSec"
done
took=$(($(property ActiveEnterTimestampMonotonic) - $(property InactiveExitTimestampMonotonic)))
[ "$took" -gt 1000000 ] || fail "the start took $took us: too short to show anything"
cp /tmp/good $CONFIG
step "a start may take longer than TimeoutStartSec"

# --- drain
lab
iwarpctl remote bench write 10.77.0.2:7400/lab --size 64k --duration 30 >/tmp/bench 2>&1 &
busy() { iwarpctl -j conn list | jq length; }
becomes 1 10 busy
! iwarpctl drain --timeout 0.1 >/dev/null || fail "the drain has cut nothing off"
becomes inactive 10 property ActiveState
sleep 3
is "unit after a drain that has cut off" "$(property ActiveState) $(property Result)" "inactive success"
step "a drain that cuts connections off is no failure"

# --- the watchdog
drop_in WatchdogSec=2
systemctl restart iwarpd || fail "systemctl restart"
sleep 5
is "restarts of a daemon that polls" "$(property NRestarts)" 0
python3 /root/manager.py stop "$(worker)" 30 &
becomes 1 20 property NRestarts
becomes active 20 property ActiveState
put_get
step "the watchdog restarts a daemon with a worker that stands still; put and get"

# --- upgrade and removal while it runs
drop_in
systemctl start iwarp-nfsd || fail "systemctl start iwarp-nfsd"
apt=(apt-get -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends)
pids() { echo "$(property MainPID) $(property MainPID iwarp-nfsd)"; }
read -r daemon server < <(pids)
"${apt[@]}" install /root/next/*.deb >/tmp/apt 2>&1 || fail "upgrade: $(tail -n 20 /tmp/apt)"
is "version" "$(dpkg-query -W -f '${Version}' ironwarp | tail -c 5)" +next
is "services after the upgrade" "$(property ActiveState) $(property ActiveState iwarp-nfsd)" "active active"
read -r daemon_now server_now < <(pids)
[ "$daemon" != "$daemon_now" ] && [ "$server" != "$server_now" ] || fail "the upgrade has restarted nothing"
case $(readlink "/proc/$daemon_now/exe" "/proc/$server_now/exe") in *deleted*) fail "a deleted program runs" ;; esac
grep -q '^format = "journald"' $CONFIG || fail "the upgrade has replaced the operator's configuration"
serves
put_get
step "an upgrade restarts the services that run, with the operator's configuration; put and get"
systemctl stop iwarpd || fail "systemctl stop"
is "result" "$(property Result)" success
[ ! -e /run/iwarpd ] || fail "/run/iwarpd is left"
"${apt[@]}" --allow-downgrades install /root/debs/*.deb >/tmp/apt 2>&1 || fail "downgrade: $(tail -n 20 /tmp/apt)"
is "services that did not run, after another version was installed" \
    "$(property ActiveState) $(property ActiveState iwarp-nfsd)" "inactive inactive"
systemctl start iwarp-nfsd || fail "systemctl start iwarp-nfsd"
read -r daemon server < <(pids)
packages=(ironwarp ironwarp-client ironwarp-bench)
"${apt[@]}" remove "${packages[@]}" ironwarp-dev >/tmp/apt 2>&1 || fail "remove: $(tail -n 20 /tmp/apt)"
[ ! -e "/proc/$daemon" ] && [ ! -e "/proc/$server" ] || fail "the removed daemons run"
is "units after the removal" "$(property LoadState) $(property LoadState iwarp-nfsd)" "not-found not-found"
[ -f $CONFIG ] && [ ! -e /usr/bin/iwarpd ] || fail "remove takes programs, and leaves the configuration"
"${apt[@]}" purge "${packages[@]}" >/tmp/apt 2>&1 || fail "purge: $(tail -n 20 /tmp/apt)"
[ ! -e $CONFIG ] && [ ! -e /var/lib/iwarp-nfsd ] || fail "purge leaves the configuration or the state"
step "a removal stops the services; a purge takes configuration and state"
echo passed
finish
