//! Loss recovery: detects lost segments and decides how fast to retransmit.
//!
//! Each part is a small state machine over numbers: it gets the facts of an acknowledgment and returns the action. The
//! segments themselves are in the connection's send queue; the connection combines the two.

mod f_rto;
mod load;
mod prr;
mod rack;
mod rate;
mod rtt;
mod tlp;
mod undo;

pub(crate) use f_rto::{FRto, FRtoAck, FRtoVerdict};
pub(crate) use load::LoadStamp;
pub(crate) use prr::Prr;
pub(crate) use rack::{Delivered, Rack};
pub(crate) use rate::{DeliveryRate, NewestDelivered, RateSample, RateStamp};
pub(crate) use rtt::{RttEstimator, SYN_SAMPLE_MAX};
pub(crate) use tlp::{ProbeOutcome, TailLossProbe};
pub(crate) use undo::Undo;

use crate::seq::SeqNum;
use crate::wire::SackBlocks;

/// Duplicate acknowledgments, or segments SACKed beyond one, that mean a loss unless there is reordering (RFC 5681
/// §3.2, RFC 6675 §2: DupThresh).
pub(crate) const DUP_THRESH: u32 = 3;

/// The kind of recovery that a connection is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// No recovery is in progress.
    Open,
    /// After a loss that acknowledgments showed (RFC 6675 §5, RFC 6582).
    Fast,
    /// After a retransmission timeout.
    Loss,
}

/// The recovery state that every acknowledgment needs. [`Episode`] has the rest.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Recovery {
    pub(crate) rack: Rack,
    pub(crate) tlp: TailLossProbe,
    /// Without SACK: consecutive duplicate acknowledgments, each of which stands for a segment that has left the
    /// network.
    pub(crate) dup_acks: u32,
    pub(crate) phase: Phase,
    /// Consecutive expirations of the retransmission timer (RFC 6298 §5.5).
    pub(crate) backoff: u8,
    /// Consecutive timeouts or probes without an answer.
    pub(crate) attempts: u8,
    /// Set in the slow start after a retransmission timeout, unless that proved spurious (RFC 3465 §2.3).
    pub(crate) slow_start_after_timeout: bool,
}

/// State of the last recovery and of SACK processing, not needed while nothing is lost or reordered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Episode {
    /// RecoveryPoint: the phase ends when everything before it is acknowledged (RFC 6675 §2).
    pub(crate) point: SeqNum,
    pub(crate) prr: Prr,
    pub(crate) f_rto: FRto,
    pub(crate) undo: Undo,
    /// Without SACK: set once a partial acknowledgment has arrived in this recovery (RFC 6582 §3.2).
    pub(crate) partial_ack: bool,
    /// Set once a recovery has ended at [`Self::point`].
    pub(crate) has_ended: bool,
    /// Set once the peer has sent a D-SACK.
    pub(crate) dsack_seen: bool,
    /// Scoreboard steps that SACK options may still cost.
    pub(crate) sack_steps: u16,
    /// The last SACK option, whose ranges need no processing again.
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
    /// Returns the initial state; `sack_steps` is the initial credit.
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
