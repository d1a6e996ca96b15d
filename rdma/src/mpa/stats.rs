//! What MPA counts.

use super::{FpduError, Refusal};

iwarp_counters::counters! {
    /// What MPA counts on the streams of one worker.
    pub struct MpaStats {
        /// FPDUs received whole and verified.
        fpdus_in,
        /// FPDUs that had to be gathered from more than one chunk of the stream.
        fpdus_in_split,
        /// FPDUs handed to TCP.
        fpdus_out,
        /// Octets of ULPDUs received.
        ulpdu_octets_in,
        /// Octets of ULPDUs handed to TCP.
        ulpdu_octets_out,
        /// Octets copied aside because they came in chunks too small to be worth holding.
        octets_spilled,
        /// Streams ended: an FPDU's CRC does not match.
        crc_errors,
        /// Streams ended: an FPDU in more small pieces than the stream may hold.
        fpdus_fragmented,
        /// Streams ended: octets were not offered in the order of the stream, or too many at once.
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
        /// Refused: the first octets are not an MPA key.
        refused_key,
        /// Refused: the peer took the role that we have (RFC 5044 §7.1.2 rule 8).
        refused_role,
        /// Refused: a revision of MPA that we do not speak.
        refused_revision,
        /// Refused: more private data than 512 octets.
        refused_private_data,
        /// Refused: an enhanced frame too short for its IRD and ORD, or a reply not as enhanced as the request.
        refused_enhanced,
        /// Refused: octets of the peer's before it may send any.
        refused_early,
        /// Refused: the peer wants markers in what we send.
        refused_markers,
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
            Refusal::Markers => &mut self.refused_markers,
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
            FpduError::Fragmented => &mut self.fpdus_fragmented,
            FpduError::Gap { .. } | FpduError::Undrained => &mut self.stream_gaps,
        };
        *counter = counter.wrapping_add(1);
    }

    /// Counts an FPDU handed to TCP.
    #[inline]
    pub fn count_fpdu_out(&mut self, ulpdu_len: usize) {
        self.fpdus_out = self.fpdus_out.wrapping_add(1);
        self.ulpdu_octets_out = self.ulpdu_octets_out.wrapping_add(ulpdu_len as u64);
    }
}
