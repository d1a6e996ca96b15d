//! Table of the reasons for which frames are dropped. The macro generates [`DropReason`], its counters ([`Drops`]) and
//! the mapping between them. `Interface` and `Stack` count with them.

macro_rules! drops {
    ($($(#[doc = $help:literal])+ $reason:ident => $field:ident,)+) => {
        /// The reason for which a received frame was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum DropReason {
            $($(#[doc = $help])+ $reason,)+
        }

        iwarp_counters::counters! {
            /// Dropped frames by reason: frames received = frames delivered + the sum of these.
            pub struct Drops {
                $($(#[doc = $help])+ $field,)+
            }
        }

        impl Drops {
            /// Counts one dropped frame.
            #[inline]
            pub(crate) fn count(&mut self, reason: DropReason) {
                let counter = match reason {
                    $(DropReason::$reason => &mut self.$field,)+
                };
                *counter = counter.wrapping_add(1);
            }

            /// Returns the number of all dropped frames.
            pub fn total(&self) -> u64 {
                0_u64 $(.wrapping_add(self.$field))+
            }
        }

        #[cfg(test)]
        const REASONS: &[DropReason] = &[$(DropReason::$reason),+];
    };
}

drops! {
    /// Ethernet: shorter than its header.
    EthernetTruncated => drop_ethernet_truncated,
    /// Ethernet: the source is a group address.
    EthernetSource => drop_ethernet_source,
    /// Ethernet: addressed to another station.
    EthernetNotOurs => drop_ethernet_not_ours,
    /// Ethernet: of another VLAN.
    EthernetVlan => drop_ethernet_vlan,
    /// Ethernet: carries neither IPv4, IPv6 nor ARP.
    EthernetType => drop_ethernet_type,
    /// ARP: truncated, or not for IPv4 over Ethernet.
    ArpMalformed => drop_arp_malformed,
    /// ARP: another operation than request and reply, or a sender address that no other station may have (group,
    /// outside of the subnet and not the gateway's, ours).
    ArpInvalid => drop_arp_invalid,
    /// ARP: another station claims an address of ours.
    ArpConflict => drop_arp_conflict,
    /// ARP: concerns neither us nor a neighbor that we know.
    ArpNotOurs => drop_arp_not_ours,
    /// IP: shorter than its headers say.
    IpTruncated => drop_ip_truncated,
    /// IP: header fields contradict each other.
    IpMalformed => drop_ip_malformed,
    /// IPv4: wrong header checksum.
    IpChecksum => drop_ip_checksum,
    /// IPv4: options that are malformed.
    IpOptions => drop_ip_options,
    /// IPv4: an incomplete source route, so the packet is not addressed to us.
    IpSourceRoute => drop_ip_source_route,
    /// IPv6: extension headers that are too many, misplaced, or unknown and not skippable.
    IpExtension => drop_ip_extension,
    /// IP: a source address that no packet may have (multicast, broadcast, loopback, our own).
    IpSource => drop_ip_source,
    /// IP: addressed to another host.
    IpNotOurs => drop_ip_not_ours,
    /// IP: a unicast packet in a link-layer broadcast.
    IpLinkBroadcast => drop_ip_link_broadcast,
    /// IP: a fragment, while reassembly is configured off.
    IpFragment => drop_ip_fragment,
    /// Fragment: impossible offset or length, or a combination of ECN bits that RFC 3168 forbids.
    FragmentMalformed => drop_fragment_malformed,
    /// Fragment: the first of its packet, without all of its headers (RFC 8200 §4.5).
    FragmentHeaders => drop_fragment_headers,
    /// Fragment: part of a packet whose fragments overlap (RFC 5722).
    FragmentOverlap => drop_fragment_overlap,
    /// Fragment: a duplicate of another.
    FragmentDuplicate => drop_fragment_duplicate,
    /// Fragment: its packet was not complete in time.
    FragmentTimeout => drop_fragment_timeout,
    /// Fragment: its packet was evicted for others, or has too many fragments.
    FragmentLimit => drop_fragment_limit,
    /// Fragment: its packet does not fit into the buffer of the first one.
    FragmentTooLarge => drop_fragment_too_large,
    /// Fragment: of a TCP segment whose connection, if it exists, belongs to another worker.
    FragmentWorker => drop_fragment_worker,
    /// IP: carries neither TCP nor ICMP.
    IpProtocol => drop_ip_protocol,
    /// ICMP: shorter than its header.
    IcmpTruncated => drop_icmp_truncated,
    /// ICMP: a wrong ICMP checksum.
    IcmpChecksum => drop_icmp_checksum,
    /// ICMP: a message that this host does not use.
    IcmpUnused => drop_icmp_unused,
    /// ICMP: an error about a packet that is not a TCP segment of ours.
    IcmpQuote => drop_icmp_quote,
    /// ICMP: an echo request, while the queue of replies is full.
    IcmpEchoLimit => drop_icmp_echo_limit,
    /// ICMPv6: an echo request whose reply would exceed the MTU; ICMPv4 replies are truncated instead.
    IcmpEchoTooLong => drop_icmp_echo_too_long,
    /// Neighbor discovery: not valid by RFC 4861 §7.1.
    NdpInvalid => drop_ndp_invalid,
    /// Neighbor discovery: another station claims an address of ours.
    NdpConflict => drop_ndp_conflict,
    /// Neighbor discovery: concerns neither us nor a neighbor that we know.
    NdpNotOurs => drop_ndp_not_ours,
    /// A request that the port's primary worker answers, not this one.
    NotPrimary => drop_not_primary,
    /// TCP: shorter than its header says.
    TcpTruncated => drop_tcp_truncated,
    /// TCP: a header length below 20.
    TcpMalformed => drop_tcp_malformed,
    /// TCP: a wrong TCP checksum.
    TcpChecksum => drop_tcp_checksum,
    /// TCP: neither for a connection nor a SYN for a listener. A reset answers it, unless resets are rate-limited
    /// (`replies_limited`) or the listener uses SYN cookies.
    TcpNoConnection => drop_tcp_no_connection,
    /// TCP: to a port that is not ours, at an address that the host's own stack has, too, and answers for.
    TcpNotOurs => drop_tcp_not_ours,
    /// TCP: a reset for a connection that does not exist.
    TcpStrayReset => drop_tcp_stray_reset,
    /// TCP: without a SYN in SYN-SENT, or the payload ends beyond 64 KiB of the frame.
    TcpInvalid => drop_tcp_invalid,
    /// TCP: a SYN for a listener whose backlog is full and that sends no cookies.
    TcpBacklog => drop_tcp_backlog,
    /// TCP: would open a connection, while the table is full and no connection can be evicted.
    TcpTableFull => drop_tcp_table_full,
    /// TCP: would open a connection, while its listener is full and no connection can be evicted.
    TcpListenerFull => drop_tcp_listener_full,
    /// TCP: would open a connection, while its source has as many as configured and none can be evicted.
    TcpSourceFull => drop_tcp_source_full,
    /// TCP: for a connection that has ended.
    TcpClosed => drop_tcp_closed,
    /// TCP: for a connection in TIME-WAIT.
    TcpTimeWait => drop_tcp_time_wait,
    /// TCP: an old timestamp (RFC 7323 PAWS).
    TcpPaws => drop_tcp_paws,
    /// TCP: all bytes were received before.
    TcpDuplicate => drop_tcp_duplicate,
    /// TCP: outside of the receive window.
    TcpOutOfWindow => drop_tcp_out_of_window,
    /// TCP: a reset that does not match exactly (RFC 5961 §3).
    TcpBadReset => drop_tcp_bad_reset,
    /// TCP: a SYN on an established connection (RFC 5961 §4).
    TcpBadSyn => drop_tcp_bad_syn,
    /// TCP: no ACK bit, where the state requires one.
    TcpNoAck => drop_tcp_no_ack,
    /// TCP: acknowledges data that was never sent, or was acknowledged long ago (RFC 5961 §5).
    TcpBadAck => drop_tcp_bad_ack,
    /// TCP: data after the peer's FIN.
    TcpAfterFin => drop_tcp_after_fin,
    /// TCP: out of order, while the connection's limit, the buffer budget or the nodes for such segments are used up.
    TcpHeldLimit => drop_tcp_held_limit,
    /// TCP: in order, but no memory was left.
    TcpNoMemory => drop_tcp_no_memory,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_reason_has_its_own_counter() {
        let mut drops = Drops::default();
        for (index, reason) in REASONS.iter().enumerate() {
            for _ in 0..=index {
                drops.count(*reason);
            }
        }
        let mut values = std::vec::Vec::new();
        drops.visit(&mut |name, _, value| {
            assert!(name.starts_with("drop_"), "{name}");
            values.push(value);
        });
        let expected: std::vec::Vec<u64> = (1..=values.len() as u64).collect();
        assert_eq!(values, expected);
        assert_eq!(drops.total(), expected.iter().sum::<u64>());
        assert_eq!(REASONS.len(), Drops::COUNT);
    }
}
