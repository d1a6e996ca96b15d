#!/bin/bash
# Libraries of verbs for other languages, by iwarp-run: rdma-core's tests of pyverbs, and the package ibverbs of PyPI,
# on daemons and without one, with devices of iWARP and of RoCE. `make bindings`.
#
#   LIMIT            seconds that a program may take (default 120)
#   IRONWARP_CACHE   where packages of PyPI are kept (25 MB), default /var/cache/ironwarp
source "$(dirname "$0")/lib.sh"

RUN=${RUN:-${BUILT:-target/release}/iwarp-run}
LIMIT=${LIMIT:-120}
PROGRAMS=dataplane/tests/programs
PYTHON=/usr/bin/python3

lab_open ironwarp-bindings
source dataplane/tests/programs/two.sh
# Two namespaces with the loopback interface alone, where programs have a device inside them.
for name in alone roce; do
    ip netns add "$NS-$name"
    ip -n "$NS-$name" link set lo up
done
for n in 0 1; do check "daemon $n starts" start "$n"; done

# at PLACE: sets AT, the command that runs a program on daemon 0 or 1, or without a daemon in one of these namespaces;
# and WHERE, the namespace. The job of a shell is then the program itself, not a subshell around it.
at() {
    WHERE=$NS AT=("$RUN" --socket "$LAB/$1.verbs")
    case $1 in alone | roce) WHERE=$NS-$1 AT=("$RUN" --embedded) ;; esac
    AT=(ip netns exec "$WHERE" timeout -k 5 "$LIMIT" "${AT[@]}")
}

# --- rdma-core's tests of pyverbs, which Debian installs as documentation; the list is for one version of them
TESTS=/usr/share/doc/rdma-core/tests
LISTED=44
listed() {
    [ -d $TESTS ] && [ "$(dpkg-query -W -f='${Version}' python3-pyverbs 2>/dev/null | cut -d . -f 1)" = $LISTED ]
}
unpack() { mkdir "$LAB/rdma-core" && cp -r $TESTS "$LAB/rdma-core/" && gunzip "$LAB"/rdma-core/tests/*.gz; }
declare -A TESTERS
# begin PLACE ADDRESS [--roce]: some tests of librdmacm wait 15 s for a peer that has failed, so that the places run
# side by side.
begin() {
    at "$1"
    "${AT[@]}" "${@:3}" $PYTHON -B $PROGRAMS/rdma_core_tests.py "$LAB/rdma-core" $PROGRAMS/rdma_core_tests.txt \
        iwarp0 "$2" >"$LAB/tests.$1" 2>&1 &
    TESTERS[$1]=$!
}
ends() { # PLACE
    local status=0
    wait "${TESTERS[$1]}" || status=$?
    cat "$LAB/tests.$1"
    return "$status"
}
if listed; then
    check "rdma-core's tests are here" unpack
    begin 0 10.78.0.10
    begin 1 10.78.0.11 --roce
    begin alone 127.0.0.1
    begin roce 127.0.0.1 --roce
    check "rdma-core's tests of pyverbs, on a daemon" ends 0
    check "rdma-core's tests of pyverbs, on a daemon, --roce" ends 1
    check "rdma-core's tests of pyverbs, without a daemon" ends alone
    check "rdma-core's tests of pyverbs, without a daemon, --roce" ends roce
else
    echo "not installed: rdma-core's tests of version $LISTED (python3-pyverbs, with $TESTS)"
fi

# --- the package ibverbs of PyPI: two processes, whose queue pairs its `connect_rc` connects
version=$($PYTHON -c 'import sys; print("%d.%d" % sys.version_info[:2])')
PACKAGES=${IRONWARP_CACHE:-/var/cache/ironwarp}/bindings-$version-$(cksum <$PROGRAMS/requirements.txt | cut -d ' ' -f 1)
packages() { # once for each list of them
    [ ! -f "$PACKAGES/complete" ] || return 0
    rm -rf "$PACKAGES"
    $PYTHON -m venv "$PACKAGES" && "$PACKAGES/bin/pip" install --quiet -r $PROGRAMS/requirements.txt &&
        touch "$PACKAGES/complete"
}
mkdir -p "$(dirname "$PACKAGES")"
exec 9>"$PACKAGES.lock"
flock 9
check "PyPI has sent $PROGRAMS/requirements.txt" packages
exec 9>&-
connect_rc() { # SERVER'S PLACE, CLIENT'S PLACE, GID INDEX, [--roce]
    local pid status=0 program=("${@:4}" "$PACKAGES/bin/python" -B "$PROGRAMS/connect_rc.py")
    at "$1"
    "${AT[@]}" "${program[@]}" server iwarp0 "$3" >"$LAB/server.out" 2>&1 &
    pid=$!
    awaits "$pid" "$LAB/server.out" hears 18515 "$WHERE" || return 1
    at "$2"
    "${AT[@]}" "${program[@]}" client iwarp0 "$3" >"$LAB/client.out" 2>&1 || status=1
    [ "$status" = 0 ] || kill "$pid" 2>/dev/null
    wait "$pid" || status=1
    grep -q 'all bytes are right' "$LAB/client.out" && grep -q 'all bytes are right' "$LAB/server.out" || status=1
    [ "$status" = 0 ] || head -n 40 "$LAB/client.out" "$LAB/server.out"
    return "$status"
}
for roce in "" --roce; do
    # shellcheck disable=SC2086
    for gid in 0 1; do
        check "ibverbs of PyPI, GID $gid, two daemons $roce" connect_rc 0 1 $gid $roce
        check "ibverbs of PyPI, GID $gid, one daemon $roce" connect_rc 0 0 $gid $roce
        check "ibverbs of PyPI, GID $gid, without a daemon $roce" connect_rc alone alone $gid $roce
    done
done

# A daemon learns that a program has ended when the kernel closes the program's socket, which is after `wait` returns.
left() { "$IWARPCTL" --socket "$LAB/$1.control" -j app list | jq length; }
for n in 0 1; do check "nothing is left on daemon $n" becomes 0 5 left "$n"; done

score
