//! Names of the hash functions of a port's receive-side scaling.

/// Returns the names of hash functions: they say what of a frame goes into the hash.
pub(super) fn functions(flags: u64) -> Vec<&'static str> {
    let names = [
        (dpdk_sys::DPDK_RSS_IPV4, "ipv4"),
        (dpdk_sys::DPDK_RSS_NONFRAG_IPV4_TCP, "ipv4-tcp"),
        (dpdk_sys::DPDK_RSS_NONFRAG_IPV4_UDP, "ipv4-udp"),
        (dpdk_sys::DPDK_RSS_IPV6, "ipv6"),
        (dpdk_sys::DPDK_RSS_NONFRAG_IPV6_TCP, "ipv6-tcp"),
        (dpdk_sys::DPDK_RSS_NONFRAG_IPV6_UDP, "ipv6-udp"),
    ];
    names.into_iter().filter(|(flag, _)| flags & flag != 0).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_functions_have_names() {
        assert!(functions(0).is_empty());
        let tcp = dpdk_sys::DPDK_RSS_NONFRAG_IPV4_TCP | dpdk_sys::DPDK_RSS_NONFRAG_IPV6_TCP;
        assert_eq!(functions(tcp), ["ipv4-tcp", "ipv6-tcp"]);
    }
}
