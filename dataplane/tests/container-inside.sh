#!/bin/bash
# The part of container.sh that runs in namespaces of its own: makes the user, and runs the commands of
# docs/programs.md as him, in their order.
source "$(dirname "$0")/lib.sh"

# Podman wants the root to be a shared mount, and keeps its locks in /dev/shm. `ip netns exec` has mounted a new /sys,
# without cgroups: crun refuses both versions side by side, and needs no controller.
mount --make-rshared / && mount -t cgroup2 cgroup2 /sys/fs/cgroup && mount -t tmpfs tmpfs /dev/shm || exit 1

# The user, and the ranges of user and group numbers that are his in a user namespace.
OWN=64321 RANGE=1879048192:65536
for file in passwd group subuid subgid; do
    cat "/etc/$file" >"$LAB/$file"
done
echo "container:x:$OWN:$OWN::$HOMELAND:/bin/sh" >>"$LAB/passwd"
echo "container:x:$OWN:" >>"$LAB/group"
echo "container:$RANGE" | tee -a "$LAB/subuid" >>"$LAB/subgid"
for file in passwd group subuid subgid; do
    mount --bind "$LAB/$file" "/etc/$file" || exit 1
done

mkdir -p "$HOMELAND"/{run,tmp,.config/containers}
chmod 700 "$HOMELAND/run"
printf '[storage]\ndriver = "overlay"\n' >"$HOMELAND/.config/containers/storage.conf"
printf '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n' >"$HOMELAND/.config/containers/containers.conf"
section=$(sed -n '/^## In a container$/,/^## /p' docs/programs.md)
# Its packages are in the base image.
sed -n '/^FROM /,/^```/p' <<<"$section" | grep -vE '^RUN apt-get update |^```' >"$HOMELAND/Containerfile"
from=$(sed -n 's/^FROM //p' "$HOMELAND/Containerfile")
chown -R "$OWN:$OWN" "$HOMELAND"

as_user() {
    (cd "$HOMELAND" && exec setpriv --reuid "$OWN" --regid "$OWN" --clear-groups env -i HOME="$HOMELAND" \
        XDG_RUNTIME_DIR="$HOMELAND/run" TMPDIR="$HOMELAND/tmp" PATH=/usr/sbin:/usr/bin:/sbin:/bin timeout 60 "$@")
}

base() {
    as_user podman import --quiet "$BASE" "docker.io/library/$from" && as_user podman info >"$LAB/info" &&
        grep -q 'rootless: true' "$LAB/info" && grep -q 'graphDriverName: overlay' "$LAB/info"
}
check "rootless podman has a base image of Debian" base

# listens CONTAINER: waits until its process listens at rping's port, 7174.
listens() {
    local pid
    pid=$(as_user podman inspect --format '{{.State.Pid}}' "$1") || return 1
    for _ in $(seq 200); do
        grep -q ':1C06 .* 0A ' "/proc/$pid/net/tcp" "/proc/$pid/net/tcp6" && return
        sleep 0.05
    done
    as_user podman logs "$1"
    return 1
}

# ended_well CONTAINER: waits until its process has ended, and fails unless with exit code 0.
ended_well() {
    SERVER=
    [ "$(as_user podman wait "$1")" = 0 ] || { as_user podman logs "$1"; return 1; }
}

# shown_command LINE: runs a command of the page. A container with a server runs on until a client has had all it
# wanted; then it must end well.
SERVER=
shown_command() {
    local status=0
    as_user sh -c "$1" >"$LAB/out" 2>"$LAB/err" || status=$?
    [ "$status" = 0 ] || { cat "$LAB/out" "$LAB/err" && echo "exit code $status"; return 1; }
    case $1 in
        *' -d '*) SERVER=$(<"$LAB/out") && listens "$SERVER" ;;
        *rping*)
            [ "$(grep -c '^ping data' "$LAB/out")" = 10 ] || { cat "$LAB/out" "$LAB/err"; return 1; }
            [ -z "$SERVER" ] || ended_well "$SERVER"
            ;;
        *ibv_devices*) grep iwarp0 "$LAB/out" ;;
    esac
}
# The base image has the programs, and nothing of Ironwarp.
mapfile -t commands < <(sed -e ':join' -e '/\\$/{N;s/\\\n *//;b join' -e '}' <<<"$section" |
    sed -n -e "s/ IMAGE / $from /" -e 's/^\$ //p')
check "docs/programs.md shows commands for a container, a pod and a network" \
    grep -c -e ' build .* --pod .* --network rdma ' <<<"${commands[*]}"
for command in "${commands[@]}"; do
    check "$command" shown_command "$command"
done

# A container's processes belong to the user, or to a number of his range; none has a capability.
powerless() {
    as_user podman run --rm --cap-drop all --network none verbs cat /proc/self/status >"$LAB/out" || return 1
    [ "$(grep -c '^Cap.*:.0*$' "$LAB/out")" = 5 ] || { cat "$LAB/out"; return 1; }
    as_user podman run -d --cap-drop all --network none verbs sleep 30 >"$LAB/out" || return 1
    local owner
    owner=$(stat -c %u "/proc/$(as_user podman inspect --format '{{.State.Pid}}' "$(<"$LAB/out")")")
    as_user podman rm --force --time 0 "$(<"$LAB/out")" >/dev/null
    echo "$owner"
    [ "$owner" -ge "${RANGE%:*}" ]
}
check "such a container has no capability, and no user of the machine" powerless
plain() {
    local status=0
    as_user podman run --rm --cap-drop all --network none verbs rping -s -a 127.0.0.1 -C 1 >"$LAB/out" 2>&1 || status=$?
    [ "$status" = 0 ] || ! grep -q 'No RDMA devices\|No such device' "$LAB/out" || return 0
    cat "$LAB/out"
    echo "exit code $status"
    return 1
}
check "rping without iwarp-run finds no device there" plain
# A filter of system calls refuses namespaces, as those of other runtimes do by default.
# shellcheck disable=SC2016
files() {
    local look='cat /sys/class/infiniband/iwarp0/node_type && test -c /dev/infiniband/uverbs0'
    look+=' && ls "$IWARP_PRELOAD_FILES"' filter="$HOMELAND/filter.json"
    printf '{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [%s]}' \
        '{"names": ["unshare", "mount"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}' >"$filter"
    as_user podman run --rm --cap-drop all --read-only --network none --security-opt seccomp="$filter" verbs \
        iwarp-run --embedded --roce sh -c "$look" >"$LAB/out" 2>"$LAB/err" &&
        [ "$(paste -sd, "$LAB/out")" = "1: CA,dev,sys" ] || { cat "$LAB/out" "$LAB/err"; return 1; }
}
check "--roce: files of the devices, where no namespace may be made" files
score
