//! Counters of the MPA layer.

use super::{FpduError, OutOfOrderRefusal, Refusal};

iwarp_counters::counters! {
    /// MPA counters of one worker's streams.
    pub struct MpaStats {
        /// FPDUs received complete and verified.
        fpdus_in,
        /// FPDUs received that spanned more than one chunk of the stream.
        fpdus_in_split,
        /// FPDUs handed to TCP.
        fpdus_out,
        /// Bytes of ULPDUs received.
        ulpdu_bytes_in,
        /// Bytes of ULPDUs handed to TCP.
        ulpdu_bytes_out,
        /// Bytes moved to the copy buffer because their chunks were too small, or too many, to be held.
        bytes_spilled,
        /// Bytes that the CPU moved on receive: to the copy buffer, and to memory.
        bytes_copied,
        /// Markers received in FPDUs.
        markers_in,
        /// Markers sent in FPDUs.
        markers_out,
        /// Chunks behind a gap that were searched for FPDUs.
        early_tried,
        /// Payload bytes that were placed before the gap in front of them closed.
        bytes_placed_early,
        /// Bytes behind a gap that were held until it closed.
        bytes_held,
        /// Chunks held: the start of an FPDU in them is not known.
        early_refused_unlocated,
        /// Chunks held: the next FPDU is not completely in them.
        early_refused_incomplete,
        /// Chunks held: the CRC of the supposed FPDU does not match.
        early_refused_crc,
        /// Chunks held: a marker does not point to the supposed FPDU.
        early_refused_marker,
        /// Chunks held: an FPDU that is not part of an RDMA Write.
        early_refused_kind,
        /// Chunks held: the last FPDU of a message, which is placed in order.
        early_refused_last,
        /// Chunks held: the STag does not allow an FPDU to be placed.
        early_refused_access,
        /// Chunks held: placed before, or the maximum number of runs is remembered.
        early_refused_runs,
        /// Streams ended: an FPDU's CRC does not match.
        crc_errors,
        /// Streams ended: a marker does not point to its FPDU.
        marker_errors,
        /// Streams ended: an FPDU does not end where an FPDU placed out-of-order begins.
        boundary_errors,
        /// Streams ended: an FPDU in more small pieces than the copy buffer takes.
        fpdus_fragmented,
        /// Streams ended: bytes were passed out of stream order, or too many at once.
        stream_gaps,
        /// Well-formed MPA Requests received.
        requests_in,
        /// MPA Requests sent as initiator.
        requests_out,
        /// Connections accepted with an MPA Reply sent.
        accepts_out,
        /// Connections rejected by the program with an MPA Reply sent.
        rejects_out,
        /// Connections accepted by an MPA Reply received.
        accepts_in,
        /// Connections rejected by an MPA Reply received.
        rejects_in,
        /// Refused: the first bytes are not an MPA key.
        refused_key,
        /// Refused: the peer took the local role (RFC 5044 §7.1.2 rule 8).
        refused_role,
        /// Refused: unsupported MPA revision.
        refused_revision,
        /// Refused: more than 512 bytes of private data.
        refused_private_data,
        /// Refused: an enhanced frame too short for IRD and ORD, or a Reply that is not enhanced as the Request is.
        refused_enhanced,
        /// Refused: bytes received before the peer may send any.
        refused_early,
        /// Refused: the peer requires more inbound reads than are available.
        refused_ird,
        /// Refused: no ready-to-receive message in common.
        refused_rtr,
        /// Given up: the startup phase exceeded its time limit.
        startup_timeouts,
        /// Given up: the peer closed the connection during startup.
        startup_closed,
    }
}

impl MpaStats {
    /// Counts a connection that is not established.
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

    /// Counts a stream that fails in full operation.
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

    /// Counts a chunk behind a gap that is held, in whole or in part.
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

    /// Counts a valid FPDU received.
    #[inline]
    pub(super) fn count_fpdu_in(&mut self, ulpdu_len: usize) {
        self.fpdus_in = self.fpdus_in.wrapping_add(1);
        self.ulpdu_bytes_in = self.ulpdu_bytes_in.wrapping_add(ulpdu_len as u64);
    }

    /// Counts a valid FPDU not as received yet: it is returned again.
    pub(super) fn uncount_fpdu_in(&mut self, ulpdu_len: usize) {
        self.fpdus_in = self.fpdus_in.wrapping_sub(1);
        self.ulpdu_bytes_in = self.ulpdu_bytes_in.wrapping_sub(ulpdu_len as u64);
    }

    /// Counts an FPDU handed to TCP.
    #[inline]
    pub fn count_fpdu_out(&mut self, ulpdu_len: usize) {
        self.fpdus_out = self.fpdus_out.wrapping_add(1);
        self.ulpdu_bytes_out = self.ulpdu_bytes_out.wrapping_add(ulpdu_len as u64);
    }
}
