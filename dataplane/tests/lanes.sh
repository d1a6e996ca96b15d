# Hosts of the kernel behind interfaces that `lab relay` connects. Sourced after lib.sh.

host() { # NAMESPACE WIRE NET HOST MTU: a kernel behind the interface WIRE of $NS
    local there="$NS-$1" wire=$2 net=$3 host=$4 mtu=$5
    ip netns add "$there"
    in_ns ip link add "$wire" mtu "$mtu" type veth peer name eth0 mtu "$mtu" netns "$there"
    ip netns exec "$there" ethtool -K eth0 tso off gso off gro off tx off >/dev/null 2>&1
    ip -n "$there" addr add "10.$net.0.$host/24" dev eth0
    ip -n "$there" -6 addr add "fd$net::$host/64" dev eth0 nodad
    ip -n "$there" link set lo up
    ip -n "$there" link set eth0 up
    ip netns exec "$there" sysctl -qw net.ipv4.tcp_rmem="4096 131072 16777216" net.ipv4.tcp_wmem="4096 65536 16777216"
    relayed "$wire"
}
relayed() { # INTERFACE: of $NS, for the relay alone
    in_ns ethtool -K "$1" tso off gso off gro off tx off rx off >/dev/null 2>&1
    in_ns sysctl -qw "net.ipv6.conf.$1.disable_ipv6=1"
    # A long queue for a daemon that waits for a CPU: only the relay may lose frames.
    in_ns ip link set "$1" txqueuelen 10000 up promisc on
}
