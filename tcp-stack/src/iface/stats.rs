//! What an interface counts.

iwarp_counters::counters! {
    /// Frames of an interface below TCP. Dropped ones are counted in [`Drops`](crate::Drops).
    pub struct InterfaceStats {
        /// Frames handed up by the port.
        rx_frames,
        /// Bytes of those frames, from the Ethernet header on, without FCS.
        rx_bytes,
        /// Frames that were of use: those that were not dropped.
        rx_delivered,
        /// TCP segments with a right checksum, for an address of ours.
        rx_tcp_segments,
        /// ICMP errors that quote a TCP segment of ours.
        rx_icmp_errors,
        /// Echo requests that are answered.
        rx_echo_requests,
        /// ARP packets of use.
        rx_arp,
        /// Neighbor solicitations and advertisements of use.
        rx_ndp,
        /// Fragments taken for reassembly, those that were dropped later included.
        rx_fragments,
        /// Packets put together from fragments.
        rx_reassembled,
        /// TCP segments whose checksum was verified in software.
        rx_software_checksums,
        /// Frames sent that carry a TCP segment.
        tx_tcp_segments,
        /// ARP requests sent, announcements included.
        tx_arp_requests,
        /// ARP replies sent.
        tx_arp_replies,
        /// Neighbor solicitations sent.
        tx_neighbor_solicitations,
        /// Neighbor advertisements sent.
        tx_neighbor_advertisements,
        /// Echo replies sent.
        tx_echo_replies,
        /// Of these, replies truncated to the MTU (RFC 1122 §3.2.2.6).
        tx_echo_truncated,
        /// ICMP errors sent: the time for reassembly was exceeded.
        tx_time_exceeded,
        /// Frames of the interface's own that were not sent: too many waited already.
        tx_queue_full,
        /// Frames of the interface's own that were not sent: no buffer had room for them.
        tx_no_room,
        /// Neighbors whose link address became known.
        neighbors_resolved,
        /// Neighbors that did not answer.
        neighbors_failed,
        /// Neighbors forgotten to make room for others.
        neighbors_evicted,
        /// Neighbors whose link address changed.
        neighbors_moved,
        /// Changes of a neighbor's link address that came too soon after the last one to be followed.
        neighbors_flapping,
        /// Claims that a neighbor in use has another link address: the known one is asked first.
        neighbors_contested,
        /// Of these, claims that were false: the known link address answered, or is configured.
        neighbors_upheld,
        /// Neighbors not taken up, since those known are all in use.
        neighbors_refused,
    }
}
