//! Why frames are dropped: one table, from which the reasons, the counters and the step from one to the
//! other are made.

macro_rules! drops {
    ($($(#[doc = $help:literal])+ $reason:ident => $field:ident,)+) => {
        /// Why a received frame was dropped.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum DropReason {
            $($(#[doc = $help])+ $reason,)+
        }

        iwarp_counters::counters! {
            /// Received frames that were dropped, by reason: frames received = frames delivered + the sum
            /// of these.
            pub struct Drops {
                $($(#[doc = $help])+ $field,)+
            }
        }

        impl Drops {
            /// Counts one frame.
            #[inline]
            pub(crate) fn count(&mut self, reason: DropReason) {
                let counter = match reason {
                    $(DropReason::$reason => &mut self.$field,)+
                };
                *counter = counter.wrapping_add(1);
            }

            /// All dropped frames.
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
    EthernetNotForUs => drop_ethernet_not_for_us,
    /// Ethernet: of another VLAN.
    EthernetVlan => drop_ethernet_vlan,
    /// Ethernet: carries neither IPv4, IPv6 nor ARP.
    EthernetType => drop_ethernet_type,
    /// ARP: truncated, or not for IPv4 over Ethernet.
    ArpMalformed => drop_arp_malformed,
    /// ARP: another operation than request and reply, or a sender that cannot be one.
    ArpInvalid => drop_arp_invalid,
    /// ARP: another station claims an address of ours.
    ArpConflict => drop_arp_conflict,
    /// ARP: concerns neither us nor a neighbor that we know.
    ArpNotForUs => drop_arp_not_for_us,
    /// IP: shorter than its headers say.
    IpTruncated => drop_ip_truncated,
    /// IP: header fields contradict each other.
    IpMalformed => drop_ip_malformed,
    /// IPv4: wrong header checksum.
    IpChecksum => drop_ip_checksum,
    /// IPv4: options that contradict themselves.
    IpOptions => drop_ip_options,
    /// IPv4: a source route names further hops, so that we are not whom the packet is for.
    IpSourceRoute => drop_ip_source_route,
    /// IPv6: extension headers that are too many, out of place, or neither known nor to be skipped.
    IpExtension => drop_ip_extension,
    /// IP: a source address that no packet may have (multicast, broadcast, loopback, our own).
    IpSource => drop_ip_source,
    /// IP: addressed to another host.
    IpNotForUs => drop_ip_not_for_us,
    /// IP: addressed to us alone, but sent to every station.
    IpLinkBroadcast => drop_ip_link_broadcast,
    /// IP: a fragment, and none are put together as configured.
    IpFragment => drop_ip_fragment,
    /// Fragment: no packet can have such a part, or parts with such ECN bits together.
    FragmentMalformed => drop_fragment_malformed,
    /// Fragment: the first of its packet, without all headers of it (RFC 8200 §4.5).
    FragmentHeaders => drop_fragment_headers,
    /// Fragment: of a packet of which fragments overlap (RFC 5722).
    FragmentOverlap => drop_fragment_overlap,
    /// Fragment: there already.
    FragmentDuplicate => drop_fragment_duplicate,
    /// Fragment: its packet waited too long for the others.
    FragmentTimeout => drop_fragment_timeout,
    /// Fragment: its packet gave way to others, or has too many fragments.
    FragmentLimit => drop_fragment_limit,
    /// Fragment: its packet does not fit into the buffer of the first one.
    FragmentTooLarge => drop_fragment_too_large,
    /// Fragment: of a TCP segment whose connection, if there is one, another worker has.
    FragmentWorker => drop_fragment_worker,
    /// IP: carries neither TCP nor ICMP.
    IpProtocol => drop_ip_protocol,
    /// ICMP: truncated.
    IcmpTruncated => drop_icmp_truncated,
    /// ICMP: wrong checksum.
    IcmpChecksum => drop_icmp_checksum,
    /// ICMP: a message of no use to us.
    IcmpUnused => drop_icmp_unused,
    /// ICMP: an error about a packet that is not a TCP segment of ours.
    IcmpQuote => drop_icmp_quote,
    /// ICMP: an echo request, while enough replies wait to be sent.
    IcmpEchoLimit => drop_icmp_echo_limit,
    /// ICMPv6: an echo request whose reply would be longer than the MTU; of ICMPv4 the reply is truncated.
    IcmpEchoTooLong => drop_icmp_echo_too_long,
    /// Neighbor discovery: not valid as RFC 4861 §7.1 has it.
    NdpInvalid => drop_ndp_invalid,
    /// Neighbor discovery: another station claims an address of ours.
    NdpConflict => drop_ndp_conflict,
    /// Neighbor discovery: concerns neither us nor a neighbor that we know.
    NdpNotForUs => drop_ndp_not_for_us,
    /// A request that the primary worker of the port answers, not this one.
    NotPrimary => drop_not_primary,
    /// TCP: shorter than its header says.
    TcpTruncated => drop_tcp_truncated,
    /// TCP: a header length below 20.
    TcpMalformed => drop_tcp_malformed,
    /// TCP: wrong checksum.
    TcpChecksum => drop_tcp_checksum,
    /// TCP: neither of a connection nor a SYN for a listener; answered by a reset, but where too many were sent of late
    /// (`replies_limited`), or the listener gives SYN cookies.
    TcpNoConnection => drop_tcp_no_connection,
    /// TCP: a reset for a connection that does not exist.
    TcpStrayReset => drop_tcp_stray_reset,
    /// TCP: in SYN-SENT, without a SYN; or its payload lies beyond 64 KiB in its frame.
    TcpInvalid => drop_tcp_invalid,
    /// TCP: a SYN, while the listener has as many half-open connections as configured and gives no cookies.
    TcpBacklog => drop_tcp_backlog,
    /// TCP: would open a connection, while as many as configured exist and none of them gives way.
    TcpTableFull => drop_tcp_table_full,
    /// TCP: would open a connection, while its listener has as many as configured and none of them gives way.
    TcpListenerFull => drop_tcp_listener_full,
    /// TCP: would open a connection, while its source has as many as configured and none of them gives way.
    TcpSourceFull => drop_tcp_source_full,
    /// TCP: for a connection that has ended.
    TcpClosed => drop_tcp_closed,
    /// TCP: for a connection in TIME-WAIT.
    TcpTimeWait => drop_tcp_time_wait,
    /// TCP: an old timestamp (RFC 7323 PAWS).
    TcpPaws => drop_tcp_paws,
    /// TCP: no timestamp, though they were agreed on.
    TcpNoTimestamp => drop_tcp_no_timestamp,
    /// TCP: nothing in it that was not received before.
    TcpDuplicate => drop_tcp_duplicate,
    /// TCP: outside of the receive window.
    TcpOutOfWindow => drop_tcp_out_of_window,
    /// TCP: a reset that does not match exactly (RFC 5961 §3).
    TcpBadReset => drop_tcp_bad_reset,
    /// TCP: a SYN on an established connection (RFC 5961 §4).
    TcpBadSyn => drop_tcp_bad_syn,
    /// TCP: no ACK bit, where a connection or a listener needs one.
    TcpNoAck => drop_tcp_no_ack,
    /// TCP: acknowledges what was never sent, or long ago (RFC 5961 §5).
    TcpBadAck => drop_tcp_bad_ack,
    /// TCP: data after the peer's FIN.
    TcpAfterFin => drop_tcp_after_fin,
    /// TCP: behind a gap, with as much held as configured.
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
