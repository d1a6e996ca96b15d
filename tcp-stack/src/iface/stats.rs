//! Counters of an interface below TCP.

iwarp_counters::counters! {
    /// Frames of an interface below TCP. [`Drops`](crate::Drops) counts dropped frames.
    pub struct InterfaceStats {
        /// Frames received from the port.
        rx_frames,
        /// Bytes of those frames, from the Ethernet header on, without FCS.
        rx_bytes,
        /// Received frames that were not dropped.
        rx_delivered,
        /// TCP segments with a correct checksum, for an address of ours.
        rx_tcp_segments,
        /// ICMP errors that quote a TCP segment of ours.
        rx_icmp_errors,
        /// Echo requests that are answered.
        rx_echo_requests,
        /// ARP packets that were not dropped.
        rx_arp,
        /// Neighbor solicitations and advertisements that were not dropped.
        rx_ndp,
        /// Fragments accepted for reassembly, including those dropped later.
        rx_fragments,
        /// Packets reassembled from fragments.
        rx_reassembled,
        /// TCP segments whose checksum was verified in software.
        rx_software_checksums,
        /// Frames sent that carry a TCP segment.
        tx_tcp_segments,
        /// ARP requests sent, announcements included.
        tx_arp_requests,
        /// ARP replies that were sent.
        tx_arp_replies,
        /// Neighbor solicitations that were sent.
        tx_neighbor_solicitations,
        /// Neighbor advertisements that were sent.
        tx_neighbor_advertisements,
        /// Echo replies that were sent.
        tx_echo_replies,
        /// Of these, replies truncated to the MTU (RFC 1122 §3.2.2.6).
        tx_echo_truncated,
        /// ICMP "time exceeded" errors sent for incomplete packets.
        tx_time_exceeded,
        /// Frames of the interface's own that were not sent: the queue was full.
        tx_queue_full,
        /// Frames of the interface's own that were not sent: no buffer had room for them.
        tx_no_room,
        /// Neighbors whose link address was resolved.
        neighbors_resolved,
        /// Neighbors that did not answer.
        neighbors_failed,
        /// Neighbors evicted to make room for others.
        neighbors_evicted,
        /// Neighbors whose link address changed.
        neighbors_moved,
        /// Changes of a neighbor's link address that came too soon after the last one to be followed.
        neighbors_flapping,
        /// Claims that a neighbor in use has another link address: the known one is solicited first.
        neighbors_contested,
        /// Of these, claims that were false: the known link address answered, or is configured.
        neighbors_upheld,
        /// Neighbors not added, since all known ones are in use.
        neighbors_refused,
    }
}
