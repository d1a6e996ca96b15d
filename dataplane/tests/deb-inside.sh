#!/bin/bash
# deb-inside.sh: the test of the Debian packages, in the chroot that deb.sh has made. The packages are in /tmp/debs.
# deb-inside.sh --serve: the part of it that runs in a network namespace of its own.
# deb-inside.sh --install: installs the packages.
set -euo pipefail
UNIT=/lib/systemd/system/iwarpd.service
begin=$SECONDS

step() { echo "ok    $* ($((SECONDS - begin)) s)"; begin=$SECONDS; }
fail() { echo "FAIL  $*"; [ ! -f /tmp/iwarpd.log ] || tail -n 30 /tmp/iwarpd.log; exit 1; }
is() { [ "$2" = "$3" ] || fail "$1: $2, not $3"; }
quietly() { "$@" >/tmp/out 2>&1 || { tail -n 30 /tmp/out; fail "$*"; }; }

# Starts the daemon as systemd does by the installed unit: its environment, its check, its command.
start() {
    local setting status check command
    while read -r setting; do export "${setting?}"; done < <(sed -n 's/^Environment=//p' "$UNIT")
    read -ra check < <(sed -n 's/^ExecStartPre=//p' "$UNIT")
    read -ra command < <(sed -n 's/^ExecStart=//p' "$UNIT")
    quietly "${check[@]}"
    "${command[@]}" >/tmp/iwarpd.log 2>&1 &
    daemon=$!
    for _ in $(seq 150); do
        status=0
        iwarpctl status >/dev/null 2>&1 || status=$?
        # A degraded daemon serves: there may be no hugepages here.
        case $status in 0 | 6) return ;; esac
        kill -0 "$daemon" 2>/dev/null || break
        sleep 0.1
    done
    fail "iwarpd does not start"
}

# Stops the daemon, and removes what systemd removes: RuntimeDirectory with the socket's lock in it.
stop() {
    local status=0
    kill -TERM "$daemon"
    wait "$daemon" || status=$?
    is "exit status of iwarpd" "$status" 0
    [ ! -e /run/iwarpd/control.sock ] || fail "iwarpd leaves its socket"
    rm -r /run/iwarpd
}

put_get() {
    ip addr add 10.77.0.1/24 dev iw0
    head -c 8388608 /dev/urandom >/tmp/sent
    quietly iwarpctl remote put /tmp/sent 10.77.0.2:7400/lab
    quietly iwarpctl remote get 10.77.0.2:7400/lab /tmp/got --length 8M
    cmp /tmp/sent /tmp/got || fail "what comes back is not what was put"
}

# Each shell loads the installed completion by itself, and offers the daemon's regions.
completions() {
    local offered
    export HOME=/tmp/home # which fish fills
    offered=$(bash --norc -ic 'source /usr/share/bash-completion/bash_completion; _completion_loader iwarpctl
        COMP_WORDS=(iwarpctl region show scr) COMP_CWORD=3; _clap_complete_iwarpctl iwarpctl scr show
        echo "${COMPREPLY[@]}"' 2>/dev/null)
    is "bash" "${offered%% }" scratch
    offered=$(fish -c 'complete -C "iwarpctl region show scr"' | cut -f1)
    is "fish" "$offered" scratch
    # shellcheck disable=SC2016 # expanded by zsh
    offered=$(zsh -f -c 'autoload -U compinit; compinit -D -u; [[ $_comps[iwarpctl] == _iwarpctl ]] || exit 1
        _describe() { print -l -- ${(P)@[-1]} }; words=(iwarpctl region show scr); CURRENT=4; _iwarpctl')
    is "zsh" "${offered%%:*}" scratch
}

serve() {
    mount -t sysfs sysfs /sys
    ip link set lo up
    start
    put_get
    step "the service starts by its unit; put and get"
    completions
    step "bash, fish and zsh complete region names"
    # The findings depend on the machine; an error would have kept the daemon from starting.
    iwarpctl doctor >/tmp/doctor || [ $? = 6 ] || { cat /tmp/doctor; fail "doctor"; }
    step "doctor finds no error"
    stop
}

# Lists every file with its kind; leaves out what apt and dpkg keep about themselves, and the copies of /etc/group and
# the like that a dependency which adds a group makes.
files() {
    find / -xdev \( -path /tmp -o -path /run -o -path /proc -o -path /sys -o -path /dev -o -path /var/cache \
        -o -path /var/lib/apt -o -path /var/lib/dpkg -o -path /var/log -o -path '/etc/*-' \) \
        -prune -o -printf '%y %p\n' | sort
}

# A package of the next version, with the same content.
next_version() {
    local deb
    mkdir /tmp/next
    for deb in /tmp/debs/*.deb; do
        dpkg-deb --raw-extract "$deb" /tmp/raw
        sed -i 's/^Version: .*/&+next/' /tmp/raw/DEBIAN/control
        dpkg-deb --build -Znone /tmp/raw /tmp/next >/dev/null
        rm -r /tmp/raw
    done
}

if [ "${1:-}" = --serve ]; then serve; exit; fi
apt=(apt-get -y -qq -o APT::Keep-Downloaded-Packages=true -o Dpkg::Use-Pty=0 --no-install-recommends)
install() {
    "${apt[@]}" install --download-only /tmp/debs/*.deb >/dev/null 2>&1 || quietly apt-get -qq update
    quietly "${apt[@]}" install /tmp/debs/*.deb
}
if [ "${1:-}" = --install ]; then install; exit; fi
files >/tmp/before
install
step "install with dependencies"
for program in iwarpd iwarpctl iwarp-nfsd iwarp-rping iwarp-run iwarp-bench; do
    is "$program" "$("$program" --version | cut -d' ' -f1)" "$program"
done
for file in /etc/iwarpd/iwarpd.toml /etc/iwarpd/nfsd.toml /usr/lib/sysctl.d/80-iwarpd-hugepages.conf "$UNIT" \
    "${UNIT%/*}/iwarp-nfsd.service" /usr/share/doc/ironwarp/copyright \
    /usr/share/doc/ironwarp/THIRD-PARTY-LICENSES.gz; do
    grep -q . "$file" || fail "$file is not there"
done
for service in iwarpd iwarp-nfsd; do
    [ ! -e /etc/systemd/system/multi-user.target.wants/$service.service ] || fail "$service is enabled"
done
step "programs, unit, configuration and licenses"
unshare --net --mount /bin/bash /tmp/deb-inside.sh --serve

sed -i 's/^level = .*//; $a [log]\nlevel = "warn"' /etc/iwarpd/iwarpd.toml
next_version
quietly "${apt[@]}" install /tmp/next/*.deb
is "version" "$(dpkg-query -W -f '${Version}' ironwarp)" \
    "$(dpkg-deb -f /tmp/debs/ironwarp_*.deb Version)+next"
grep -q '^level = "warn"' /etc/iwarpd/iwarpd.toml || fail "the upgrade has replaced the operator's configuration"
unshare --net --mount /bin/bash /tmp/deb-inside.sh --serve
step "upgrade, with the operator's configuration"

quietly "${apt[@]}" remove ironwarp ironwarp-bench
[ ! -e /usr/bin/iwarpd ] && [ -f /etc/iwarpd/iwarpd.toml ] || fail "remove takes programs, and leaves the configuration"
quietly "${apt[@]}" purge --autoremove ironwarp ironwarp-bench
files >/tmp/after
diff /tmp/before /tmp/after >/tmp/left || { head -n 30 /tmp/left; fail "the purge has left something behind"; }
step "remove, and purge: nothing is left"
