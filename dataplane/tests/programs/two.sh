# shellcheck shell=bash
# Two daemons, 0 and 1, of programs: ports of a bridge, with the addresses 10.78.0.10 and 10.78.0.11. Sourced after
# lab_open; `start N` of ../daemons.sh starts them. CORES_0 and CORES_1 are the CPUs of their workers, by default one.

ip -n "$NS" link add switch type bridge
ip -n "$NS" link set switch up
for port in 0 1; do
    cores=CORES_$port
    ip -n "$NS" link add "v$port" type veth peer name "s$port"
    ip -n "$NS" link set "s$port" master switch up
    ip -n "$NS" link set "v$port" up
    cat >"$LAB/$port.toml" <<TOML
[memory]
hugepages = "prefer"
packet_buffers = 16384
file_prefix = "$NS-$port"
[[port]]
name = "port$port"
driver = "af_packet"
interface = "v$port"
mtu = 1500
addresses = ["10.78.0.1$port/24", "fd78::1$port/64"]
[workers]
cores = [${!cores:-$((port % $(nproc)))}]
idle = "adaptive"
[tcp]
connections_max = 1024
[control]
socket = "$LAB/$port.control"
[applications]
socket = "$LAB/$port.verbs"
mode = "0666"
contexts_max = 128
user_contexts_max = 64
user_memory = "4G"
TOML
done
source dataplane/tests/daemons.sh
on() { # N COMMAND…: runs a program on daemon N, for at most LIMIT seconds
    local n=$1
    shift
    ip netns exec "$NS" timeout -k 5 "$LIMIT" "$RUN" --socket "$LAB/$n.verbs" "$@"
}
