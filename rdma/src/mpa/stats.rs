//! What MPA counts.

use super::{FpduError, OutOfOrderRefusal, Refusal};

iwarp_counters::counters! {
    /// What MPA counts on the streams of one worker.
    pub struct MpaStats {
        /// FPDUs received whole and verified.
        fpdus_in,
        /// FPDUs that had to be gathered from more than one chunk of the stream.
        fpdus_in_split,
        /// FPDUs handed to TCP.
        fpdus_out,
        /// Bytes of ULPDUs received.
        ulpdu_bytes_in,
        /// Bytes of ULPDUs handed to TCP.
        ulpdu_bytes_out,
        /// Bytes copied aside because they came in chunks too small, or too many, to be held.
        bytes_spilled,
        /// Bytes that the processor moved on receive: copied aside, and placed in memory.
        bytes_copied,
        /// Markers received.
        markers_in,
        /// Markers sent.
        markers_out,
        /// Chunks behind a gap that were looked at.
        early_tried,
        /// Bytes of payload that were placed before the gap in front of them closed.
        bytes_placed_early,
        /// Bytes behind a gap that had to be held until it closed.
        bytes_held,
        /// Chunks held: nothing tells where an FPDU begins in them.
        early_refused_unlocated,
        /// Chunks held: the next FPDU does not lie whole in them.
        early_refused_incomplete,
        /// Chunks held: the CRC of what might be an FPDU does not match.
        early_refused_crc,
        /// Chunks held: the markers of what might be an FPDU do not point to it.
        early_refused_marker,
        /// Chunks held: an FPDU that is not part of an RDMA Write.
        early_refused_kind,
        /// Chunks held: the last FPDU of a message, which is placed in order.
        early_refused_last,
        /// Chunks held: an FPDU that may not be placed where it says.
        early_refused_access,
        /// Chunks held: placed before, or as many runs are remembered as may be.
        early_refused_runs,
        /// Streams ended: an FPDU's CRC does not match.
        crc_errors,
        /// Streams ended: a marker does not point to its FPDU.
        marker_errors,
        /// Streams ended: an FPDU does not end where the next was found before the gap between them closed.
        boundary_errors,
        /// Streams ended: an FPDU in more small pieces than the stream may hold.
        fpdus_fragmented,
        /// Streams ended: bytes were not offered in the order of the stream, or too many at once.
        stream_gaps,
        /// MPA Requests that were well formed.
        requests_in,
        /// MPA Requests sent.
        requests_out,
        /// Connections accepted by an MPA Reply of ours.
        accepts_out,
        /// Connections rejected by an MPA Reply of ours at the owner's wish.
        rejects_out,
        /// Connections accepted by the peer's MPA Reply.
        accepts_in,
        /// Connections rejected by the peer's MPA Reply.
        rejects_in,
        /// Refused: the first bytes are not an MPA key.
        refused_key,
        /// Refused: the peer took the role that we have (RFC 5044 §7.1.2 rule 8).
        refused_role,
        /// Refused: a revision of MPA that we do not speak.
        refused_revision,
        /// Refused: more private data than 512 bytes.
        refused_private_data,
        /// Refused: an enhanced frame too short for its IRD and ORD, or a reply not as enhanced as the request.
        refused_enhanced,
        /// Refused: bytes of the peer's before it may send any.
        refused_early,
        /// Refused: the peer wants more inbound reads than we have room for.
        refused_ird,
        /// Refused: no message to signal ready-to-receive that both sides know.
        refused_rtr,
        /// Given up: the startup frames took too long.
        startup_timeouts,
        /// Given up: the peer closed during startup.
        startup_closed,
    }
}

impl MpaStats {
    /// Counts a connection that does not come to be.
    pub fn count_refusal(&mut self, refusal: Refusal) {
        let counter = match refusal {
            Refusal::Key => &mut self.refused_key,
            Refusal::Role => &mut self.refused_role,
            Refusal::Revision => &mut self.refused_revision,
            Refusal::PrivateData => &mut self.refused_private_data,
            Refusal::Enhanced => &mut self.refused_enhanced,
            Refusal::Early => &mut self.refused_early,
            Refusal::InsufficientIrd => &mut self.refused_ird,
            Refusal::NoMatchingRtr => &mut self.refused_rtr,
            Refusal::Owner => &mut self.rejects_out,
            Refusal::Timeout => &mut self.startup_timeouts,
            Refusal::PeerClosed => &mut self.startup_closed,
        };
        *counter = counter.wrapping_add(1);
    }

    /// Counts a stream that ends in full operation.
    pub fn count_fpdu_error(&mut self, error: FpduError) {
        let counter = match error {
            FpduError::Crc => &mut self.crc_errors,
            FpduError::Marker => &mut self.marker_errors,
            FpduError::Boundary => &mut self.boundary_errors,
            FpduError::Fragmented => &mut self.fpdus_fragmented,
            FpduError::Gap { .. } | FpduError::Undrained => &mut self.stream_gaps,
        };
        *counter = counter.wrapping_add(1);
    }

    /// Counts a chunk behind a gap that is held, or not wholly placed.
    pub fn count_out_of_order_refusal(&mut self, refusal: OutOfOrderRefusal) {
        let counter = match refusal {
            OutOfOrderRefusal::Unlocated => &mut self.early_refused_unlocated,
            OutOfOrderRefusal::Incomplete => &mut self.early_refused_incomplete,
            OutOfOrderRefusal::Crc => &mut self.early_refused_crc,
            OutOfOrderRefusal::Marker => &mut self.early_refused_marker,
            OutOfOrderRefusal::Kind => &mut self.early_refused_kind,
            OutOfOrderRefusal::Last => &mut self.early_refused_last,
            OutOfOrderRefusal::Access => &mut self.early_refused_access,
            OutOfOrderRefusal::Runs => &mut self.early_refused_runs,
        };
        *counter = counter.wrapping_add(1);
    }

    /// Counts an FPDU that came and is right.
    #[inline]
    pub(super) fn count_fpdu_in(&mut self, ulpdu_len: usize) {
        self.fpdus_in = self.fpdus_in.wrapping_add(1);
        self.ulpdu_bytes_in = self.ulpdu_bytes_in.wrapping_add(ulpdu_len as u64);
    }

    /// Counts an FPDU handed to TCP.
    #[inline]
    pub fn count_fpdu_out(&mut self, ulpdu_len: usize) {
        self.fpdus_out = self.fpdus_out.wrapping_add(1);
        self.ulpdu_bytes_out = self.ulpdu_bytes_out.wrapping_add(ulpdu_len as u64);
    }
}
