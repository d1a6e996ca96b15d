//! Counters of this crate. Each block has one writer: the worker that owns the streams.

use crate::memory::AccessError;
use crate::mpa::MpaStats;
use crate::service::Status;
use crate::terminate::StreamError;

iwarp_counters::counters! {
    /// Counters of RDMA messages and their bytes.
    pub struct RdmapStats {
        /// Streams that entered full operation.
        established,
        /// Streams whose peer, the initiator, sent the negotiated ready-to-receive message first.
        in_rtrs,
        /// Streams that this side, as initiator, began with a ready-to-receive message.
        out_rtrs,
        /// RDMA Writes received and completely placed.
        in_rdma_writes,
        /// RDMA Read Requests received.
        in_rdma_reads,
        /// RDMA Read Responses received completely.
        in_read_responses,
        /// Sends received and completely placed.
        in_sends,
        /// Atomic operations performed for the peer.
        in_atomics,
        /// Atomic Responses received.
        in_atomic_responses,
        /// Immediate Data received.
        in_immediates,
        /// RDMA Writes sent.
        out_rdma_writes,
        /// RDMA Read Requests sent.
        out_rdma_reads,
        /// RDMA Read Responses sent.
        out_read_responses,
        /// Sends sent.
        out_sends,
        /// Atomic Requests sent.
        out_atomics,
        /// Atomic Responses sent.
        out_atomic_responses,
        /// Immediate Data sent.
        out_immediates,
        /// Progress messages received, between queue pairs that are connected by number.
        in_progress,
        /// Progress messages that this side has sent.
        out_progress,
        /// Messages that have waited for a receive buffer.
        buffer_waits,
        /// Datagrams received on links between devices.
        in_datagrams,
        /// Datagrams dropped because too many waited at their link.
        datagrams_crowded_out,
        /// Datagrams dropped because their queue pair had no receive buffer.
        datagrams_without_buffer,
        /// Datagrams dropped because they were longer than the receive buffer, which needs 40 bytes more.
        datagrams_too_long,
        /// Bytes placed in regions: Writes, Read Responses and Sends.
        payload_bytes_placed,
        /// Bytes fetched from regions: Writes, Read Responses and Sends.
        payload_bytes_fetched,
        /// STags that peers invalidated.
        stags_invalidated,
        /// Empty RDMA Writes sent because the peer was silent.
        pokes,
        /// DDP Segments that went to another connection of the same device without TCP.
        looped_segments,
        /// Bytes of these: FPDUs, and payload copied from memory to memory.
        looped_bytes,
        /// Terminate messages sent.
        terminates_sent,
        /// Terminate messages that could not be sent in time.
        terminates_unsent,
        /// Streams reset because the peer did not let them end in time: it owed Read Responses, or did not take its
        /// own.
        disconnects_overdue,
        /// Terminate messages received.
        terminates_received,
        /// Of these, those in Linux soft-iWARP's bit order.
        terminates_received_swapped,
    }
}

iwarp_counters::counters! {
    /// Segments dropped, by reason. All but the first three end their stream with a Terminate.
    pub struct SegmentDrops {
        /// FPDUs, or chunks of the stream, that arrived after the end of their stream.
        after_error,
        /// Segments truncated by the end of their stream.
        cut_off,
        /// FPDUs that stayed incomplete for too long; their connections were reset.
        fpdu_timeout,
        /// FPDUs whose CRC32c is wrong.
        crc,
        /// FPDUs too short for their headers.
        fpdu_length,
        /// FPDUs that do not begin where a marker, or an FPDU placed out-of-order, indicates.
        fpdu_start,
        /// Setup failures of this side.
        setup_failed,
        /// Setup: the responder asks for more inbound reads than this side can serve.
        insufficient_ird,
        /// Setup: no ready-to-receive message in common, or another message in its place.
        no_matching_rtr,
        /// Tagged segments of another DDP version.
        tagged_version,
        /// Untagged segments of another DDP version.
        untagged_version,
        /// Tagged segments whose STag is not valid.
        tagged_stag,
        /// Tagged segments whose STag is valid on other streams only.
        tagged_stream,
        /// Tagged segments whose STag does not carry the right.
        tagged_rights,
        /// Tagged segments outside their buffer.
        tagged_bounds,
        /// Tagged segments whose end exceeds 2^64.
        tagged_wrap,
        /// Untagged segments with a wrong queue number.
        queue_number,
        /// Messages without a posted buffer.
        no_buffer,
        /// Messages with an unexpected MSN.
        msn_range,
        /// Segments that do not continue their message.
        message_offset,
        /// Messages longer than their buffer.
        message_too_long,
        /// Segments of another RDMAP version.
        rdmap_version,
        /// Segments with an opcode that is not allowed there.
        unexpected_opcode,
        /// Read Requests of a wrong length.
        read_request_length,
        /// Read Responses shorter than requested.
        read_response_short,
        /// Reads with an STag that is not valid.
        read_stag,
        /// Reads with an STag that is valid on other streams only.
        read_stream,
        /// Reads with an STag that does not carry the right.
        read_rights,
        /// Reads outside their buffer.
        read_bounds,
        /// Reads whose end exceeds 2^64.
        read_wrap,
        /// Atomic operations with an STag that is not valid.
        atomic_stag,
        /// Atomic operations with an STag that is valid on other streams only.
        atomic_stream,
        /// Atomic operations with an STag that does not carry the right.
        atomic_rights,
        /// Atomic operations outside their buffer.
        atomic_bounds,
        /// Atomic operations whose end exceeds 2^64.
        atomic_wrap,
        /// Atomic operations at an address that is not a multiple of eight.
        atomic_alignment,
        /// Atomic Requests of a wrong length, or for an unknown operation.
        atomic_request,
        /// Atomic Responses of a wrong length, or not the one that was due.
        atomic_response,
        /// Immediate Data of a wrong length.
        immediate_length,
        /// Sends with Invalidate that name an STag they may not invalidate.
        invalidate,
        /// Segments whose bytes could not be placed: the region does not have them.
        place,
        /// Reads and atomic operations whose bytes the region does not have.
        fetch,
        /// Streams ended for a local fault.
        local,
        /// Streams ended for a local fault that ends all streams.
        global,
    }
}

iwarp_counters::counters! {
    /// Answers of the region service, by status.
    pub struct ServiceStats {
        /// STags granted.
        granted,
        /// Refused: no region of that name.
        no_such_region,
        /// Refused: the access, the peer or the token.
        not_permitted,
        /// Refused: no STag was free.
        no_resources,
        /// Refused: not a request of the region service.
        malformed,
    }
}

impl ServiceStats {
    /// Counts an answer with this status.
    pub const fn count(&mut self, status: Status) {
        let counter = match status {
            Status::Ok => &mut self.granted,
            Status::NoSuchRegion => &mut self.no_such_region,
            Status::NotPermitted => &mut self.not_permitted,
            Status::NoResources => &mut self.no_resources,
            Status::Malformed => &mut self.malformed,
        };
        *counter = counter.wrapping_add(1);
    }
}

impl SegmentDrops {
    /// Counts an error that ends a stream.
    pub(crate) const fn count(&mut self, error: StreamError) {
        let counter = match error {
            StreamError::Crc => &mut self.crc,
            StreamError::FpduLength => &mut self.fpdu_length,
            StreamError::FpduStart => &mut self.fpdu_start,
            StreamError::SetupFailed => &mut self.setup_failed,
            StreamError::InsufficientIrd => &mut self.insufficient_ird,
            StreamError::NoMatchingRtr => &mut self.no_matching_rtr,
            StreamError::TaggedVersion => &mut self.tagged_version,
            StreamError::UntaggedVersion => &mut self.untagged_version,
            StreamError::Tagged(error) => match error {
                AccessError::InvalidStag => &mut self.tagged_stag,
                AccessError::NotAssociated => &mut self.tagged_stream,
                AccessError::Rights => &mut self.tagged_rights,
                AccessError::Bounds => &mut self.tagged_bounds,
                AccessError::Wrap => &mut self.tagged_wrap,
            },
            StreamError::QueueNumber => &mut self.queue_number,
            StreamError::NoBuffer => &mut self.no_buffer,
            StreamError::MsnRange => &mut self.msn_range,
            StreamError::MessageOffset => &mut self.message_offset,
            StreamError::MessageTooLong => &mut self.message_too_long,
            StreamError::RdmapVersion => &mut self.rdmap_version,
            StreamError::UnexpectedOpcode => &mut self.unexpected_opcode,
            StreamError::ReadRequestLength => &mut self.read_request_length,
            StreamError::ReadResponseShort => &mut self.read_response_short,
            StreamError::Read(error) => match error {
                AccessError::InvalidStag => &mut self.read_stag,
                AccessError::NotAssociated => &mut self.read_stream,
                AccessError::Rights => &mut self.read_rights,
                AccessError::Bounds => &mut self.read_bounds,
                AccessError::Wrap => &mut self.read_wrap,
            },
            StreamError::Atomic(error) => match error {
                AccessError::InvalidStag => &mut self.atomic_stag,
                AccessError::NotAssociated => &mut self.atomic_stream,
                AccessError::Rights => &mut self.atomic_rights,
                AccessError::Bounds => &mut self.atomic_bounds,
                AccessError::Wrap => &mut self.atomic_wrap,
            },
            StreamError::AtomicAlignment => &mut self.atomic_alignment,
            StreamError::AtomicRequest => &mut self.atomic_request,
            StreamError::AtomicResponse => &mut self.atomic_response,
            StreamError::ImmediateLength => &mut self.immediate_length,
            StreamError::Invalidate(_) => &mut self.invalidate,
            StreamError::Place => &mut self.place,
            StreamError::Fetch => &mut self.fetch,
            StreamError::Local => &mut self.local,
            StreamError::Global => &mut self.global,
        };
        *counter = counter.wrapping_add(1);
    }
}

/// All counters of this crate for one worker.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RdmaStats {
    /// Counters of the MPA layer.
    pub mpa: MpaStats,
    /// Counters of the RDMAP layer.
    pub rdmap: RdmapStats,
    /// Segments dropped by DDP and RDMAP.
    pub drops: SegmentDrops,
    /// Counters of the region service.
    pub service: ServiceStats,
}

impl RdmaStats {
    /// Calls `f(group, name, help, value)` once per counter.
    pub fn visit(&self, f: &mut dyn FnMut(&'static str, &'static str, &'static str, u64)) {
        let Self { mpa, rdmap, drops, service } = self;
        mpa.visit(&mut |name, help, value| f("mpa", name, help, value));
        rdmap.visit(&mut |name, help, value| f("rdmap", name, help, value));
        drops.visit(&mut |name, help, value| f("segment_drops", name, help, value));
        service.visit(&mut |name, help, value| f("region_service", name, help, value));
    }

    /// Adds another worker's counters to these.
    pub fn add(&mut self, other: &Self) {
        let Self { mpa, rdmap, drops, service } = other;
        self.mpa.add(mpa);
        self.rdmap.add(rdmap);
        self.drops.add(drops);
        self.service.add(service);
    }
}

/// Adds `by` to a counter.
#[inline]
pub(crate) const fn count(counter: &mut u64, by: usize) {
    *counter = counter.wrapping_add(by as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_counter_is_visited_and_added() {
        let mut stats = RdmaStats::default();
        stats.drops.count(StreamError::Crc);
        stats.service.count(Status::Malformed);
        let mut sum = stats;
        sum.add(&stats);
        let mut rows = 0;
        let mut total = 0;
        sum.visit(&mut |_, _, help, value| {
            assert!(!help.trim().is_empty());
            rows += 1;
            total += value;
        });
        let all = MpaStats::COUNT + RdmapStats::COUNT + SegmentDrops::COUNT + ServiceStats::COUNT;
        assert_eq!((rows, total), (all, 4));
    }
}
