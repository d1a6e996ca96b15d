//! Finding out what was lost, and how fast to send it again.
//!
//! Each piece is a small state machine over numbers: it is told what an acknowledgment said and answers
//! what follows. What was sent is in the connection's send queue; the connection joins the two.

mod f_rto;
mod prr;
mod rack;
mod rate;
mod rtt;
mod tlp;
mod undo;

pub(crate) use f_rto::{FRto, FRtoAck, FRtoVerdict};
pub(crate) use prr::Prr;
pub(crate) use rack::{Delivered, Rack};
pub(crate) use rate::{DeliveryRate, NewestDelivered, RateSample, RateStamp};
pub(crate) use rtt::{RttEstimator, SYN_SAMPLE_MAX};
pub(crate) use tlp::{ProbeOutcome, TailLossProbe};
pub(crate) use undo::Undo;

use crate::seq::SeqNum;
use crate::wire::SackBlocks;

/// Segments whose acknowledgment out of order means loss, in the absence of reordering (RFC 5681 §3.2,
/// RFC 6675 §2: DupThresh).
pub(crate) const DUP_THRESH: u32 = 3;

/// Which kind of recovery a connection is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// None.
    Open,
    /// After a loss that acknowledgments showed (RFC 6675 §5, RFC 6582).
    Fast,
    /// After a retransmission timeout.
    Loss,
}

/// The recovery state of one connection: what every acknowledgment is looked at by. The rest is in [`Episode`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recovery {
    pub(crate) rack: Rack,
    pub(crate) tlp: TailLossProbe,
    /// Without SACK: duplicate acknowledgments in a row, each of which stands for a segment that has
    /// left the network.
    pub(crate) dup_acks: u32,
    pub(crate) phase: Phase,
    /// How often the retransmission timer has expired in a row (RFC 6298 §5.5).
    pub(crate) backoff: u8,
    /// Timeouts or probes in a row without a sign of life.
    pub(crate) attempts: u8,
    /// Slow start follows a retransmission timeout that was not found spurious (RFC 3465 §2.3).
    pub(crate) slow_start_after_timeout: bool,
}

/// What is known of the last recovery, and what SACK said: of no concern while nothing is lost or late.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Episode {
    /// The phase ends when everything before this is acknowledged (RFC 6675 §2: RecoveryPoint).
    pub(crate) point: SeqNum,
    pub(crate) prr: Prr,
    pub(crate) f_rto: FRto,
    pub(crate) undo: Undo,
    /// Without SACK: an acknowledgment of a part came in this recovery (RFC 6582 §3.2).
    pub(crate) partial_ack: bool,
    /// A recovery has ended at [`Self::point`], as recoveries should.
    pub(crate) has_ended: bool,
    /// The peer has reported a duplicate, so it knows how to.
    pub(crate) dsack_seen: bool,
    /// Steps over the scoreboard that SACK options may cost now.
    pub(crate) sack_steps: u16,
    /// The last SACK option, whose ranges need not be looked at again.
    pub(crate) sack_seen: SackBlocks,
}

impl Recovery {
    pub(crate) const fn new(iss: SeqNum) -> Self {
        Self {
            rack: Rack::new(iss),
            tlp: TailLossProbe::new(),
            dup_acks: 0,
            phase: Phase::Open,
            backoff: 0,
            attempts: 0,
            slow_start_after_timeout: false,
        }
    }

    pub(crate) fn in_recovery(&self) -> bool {
        self.phase != Phase::Open
    }
}

impl Episode {
    /// None yet; `sack_steps` is how many are saved up at first.
    pub(crate) const fn new(iss: SeqNum, sack_steps: u16) -> Self {
        Self {
            point: iss,
            prr: Prr::new(0),
            f_rto: FRto::Off,
            undo: Undo::NONE,
            partial_ack: false,
            has_ended: false,
            dsack_seen: false,
            sack_steps,
            sack_seen: SackBlocks::EMPTY,
        }
    }
}
