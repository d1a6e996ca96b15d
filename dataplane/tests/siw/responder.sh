# shellcheck shell=bash
# Cases with us as the responder: the guest's siw writes and reads our regions. Sourced by run.sh. OUR_HOST and
# OUR_HOST6 are the addresses of what serves: of `iwarpd`, or of the servers of device.sh.

# Ports of regions that are not at the listeners of the others, by name.
declare -A PORT_OF=()

# client PORT OPTIONS
client() {
    local port=$1 k
    shift
    for k in $(seq $#); do
        [ "${!k}" != --region ] || port=${PORT_OF[${*:k+1:1}]:-$port}
    done
    guest_client siw 150 --timeout 60 --host "$OUR_HOST" --port "$port" "$@"
}
reject() {
    local status=$1
    shift
    client $CRC_ON --expect-reject "$status" "$@"
}
not_client() { ! client "$@"; }

# bulk PORT SEED: transfers the whole region on one connection, then four at once, then mixes Writes and Reads.
bulk() {
    local port=$1 seed=$2 title=$3
    try "$title: 1 B to 1 MiB over the region" client "$port" --region lab --size "$BYTES" --ops write,read \
        --seed "$seed"
    try "$title: four queue pairs" \
        client "$port" --region lab --qps 4 --size $((BYTES / 4)) --ops write,read,mix --seed $((seed + 1))
    try "$title: the rest of the region kept its bytes" \
        client "$port" --region lab --access r --start $((BYTES / 4)) --size $((BYTES / 4)) --ops read --seed "$seed"
}

# terminate_seen: prints layer, type and code of the Terminates that the guest's kernel has received. siw swaps the
# nibbles of the first byte.
terminate_seen() {
    guest_run siw dmesg |
        sed -n 's/.*got TERMINATE\. layer \([0-9]*\), type \([0-9]*\), code \([0-9]*\).*/\2\/\1\/\3/p'
}

# terminated LAYER/TYPE/CODE… -- PORT OPTIONS: the client is refused, and the guest's kernel has received one of these
# Terminates, and no other.
terminated() {
    local wanted=() seen code
    while [ "$1" != -- ]; do
        wanted+=("$1")
        shift
    done
    shift
    guest_run siw 'dmesg -c >/dev/null'
    client "$@"
    code=$?
    seen=$(terminate_seen)
    echo "Terminate: ${seen:-none}; wanted: ${wanted[*]}"
    [ "$code" = 0 ] && [ -n "$seen" ] && [[ " ${wanted[*]} " == *" $seen "* ]]
}

# crc_is true|false: the CRC setting that the daemon reports for its only established connection.
crc_is() {
    local agreed
    agreed=$(ctl -j conn list | jq -c '[.[] | select(.state == "ESTABLISHED" and .rdma) | .rdma.crc]')
    echo "CRC of established connections: $agreed"
    [ "$agreed" = "[$1]" ]
}

# revoke OPERATION PORT CRC TERMINATE: deregisters a region while a connection uses it.
revoke() {
    local seen
    ctl region register victim --size 1M --access remote-read,remote-write &&
        guest_hold siw --host 10.77.0.2 --port "$2" --region victim --ops "$1" --seed 3 &&
        crc_is "$3" && guest_run siw 'dmesg -c >/dev/null' &&
        ctl region deregister victim --force && guest_release siw || return 1
    seen=$(terminate_seen)
    echo "Terminate: ${seen:-none}; wanted: $4"
    [ "$seen" = "$4" ]
}

refusals() {
    local kind
    try "wrong name" reject 1 --region nowhere
    try "wrong token" reject 2 --region secret --token open-sesamE
    try "no token" reject 2 --region secret
    try "right that the region has not" reject 2 --region lab-ro --access rw
    try "another right that the region has not" reject 2 --region lab --access rwa
    try "source that is not admitted" reject 2 --region elsewhere
    for kind in magic short truncated empty-name long-name long-token; do
        try "malformed request: $kind" reject 4 --region lab --malformed "$kind"
    done
    try "a grant is no reject" not_client $CRC_ON --region lab --expect-reject 2
}

violations() {
    local secret=("$CRC_ON" --region secret --token open-sesame) name
    try "fill" client "${secret[@]}" --ops write,read --seed 77
    # RFC 5041 §7.1 and RFC 5040 §4.8: layer, error type, error code.
    for name in past-end at-end far; do
        try "write-$name" terminated 1/1/1 -- "${secret[@]}" --ops "write-$name"
        try "read-$name" terminated 0/1/1 -- "${secret[@]}" --ops "read-$name"
    done
    # A tagged offset below a base of zero wraps.
    try "write-before" terminated 1/1/1 1/1/3 -- "${secret[@]}" --ops write-before
    try "read-before" terminated 0/1/1 0/1/4 -- "${secret[@]}" --ops read-before
    try "write-wrap" terminated 1/1/3 -- "${secret[@]}" --ops write-wrap
    try "read-wrap" terminated 0/1/4 -- "${secret[@]}" --ops read-wrap
    for name in bad-stag bad-key closed-stream; do
        try "$name-write" terminated 1/1/0 -- "${secret[@]}" --ops "$name-write"
        try "$name-read" terminated 0/1/0 -- "${secret[@]}" --ops "$name-read"
    done
    try "other-stream-write" terminated 1/1/2 -- "${secret[@]}" --ops other-stream-write
    try "other-stream-read" terminated 0/1/3 -- "${secret[@]}" --ops other-stream-read
    # DDP has no code for a missing right: it is an invalid STag.
    try "write on a read-only grant" terminated 1/1/0 -- $CRC_ON --region lab-ro --access r --ops forbidden-write
    try "write on a read grant of a writable region" \
        terminated 1/1/0 -- "${secret[@]}" --access r --ops forbidden-write
    try "read on a write-only grant" terminated 0/1/2 -- $CRC_ON --region lab-wo --access w --ops forbidden-read
    try "region unchanged" client "${secret[@]}" --access r --ops read --seed 77
    try "read-only region unchanged" client $CRC_ON --region lab-ro --access r --ops read --seed 0
    try "a wrong byte would be noticed" not_client "${secret[@]}" --access r --ops read --seed 78
}
# no_violation: the client waits a quarter of a minute for the end that must not come.
no_violation() { not_client "$CRC_ON" --region secret --token open-sesame --ops forbidden-read; }

revocations() {
    try "write after deregistration, CRC on" revoke hold-write $CRC_ON true 1/1/0
    try "read after deregistration, CRC off" revoke hold-read $CRC_OFF false 0/1/0
    try "the region's name is gone" reject 1 --region victim
}

# agreed IRD ORD: iwarpd grants as many Reads as the guest wants to send, and requests as many as it answers; siw
# respects that. The start of the region is as `bulk $CRC_OFF 200` left it.
agreed() {
    local ird=$1 ord=$2 seen
    guest_hold siw --host 10.77.0.2 --port $CRC_ON --region lab --ird "$ird" --ord "$ord" --ops depth --seed 201 ||
        return 1
    seen=$(ctl -j conn list | jq -r '.[] | select(.rdma) | "\(.rdma.ird) \(.rdma.ord)"')
    guest_release siw || return 1
    echo "RESULT Reads agreed on (ours to answer, ours to send): $seen"
    [ "$seen" = "$ord $ird" ]
}

depths() {
    local pair
    for pair in "0 0" "0 1" "1 0" "1 1" "3 2" "2 7" "16 16" "128 0" "0 128" "127 128" "128 128"; do
        # shellcheck disable=SC2086 # two numbers
        try "IRD and ORD ${pair/ / and }" agreed $pair
    done
}

# regions: the other regions, and what must be refused.
regions() {
    try "IPv6" client $CRC_ON --host "$OUR_HOST6" --region scratch --access rwa --ops write,read,mix --seed 300
    try "write-only grant" client $CRC_ON --region lab-wo --access w --ops write --seed 301
    refusals
    violations
}

suite_responder() {
    bulk $CRC_ON 100 "CRC on"
    bulk $CRC_OFF 200 "CRC off"
    regions
    try "an allowed access is no violation" no_violation
    revocations
    depths
    try "16 queue pairs" client $CRC_ON --region lab --qps 16 --size $((BYTES / 4)) --ops write,read,mix --seed 302
}
