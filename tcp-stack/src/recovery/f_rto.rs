//! Forward RTO-recovery (RFC 5682): detects spurious timeouts.
//!
//! After a timeout only the first segment is retransmitted, then new data is sent. The next acknowledgment shows
//! whether the originals have arrived.

/// The step that the algorithm has reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FRto {
    /// Not running: recovery is conventional.
    Off,
    /// Step 2: the first segment was retransmitted and is not acknowledged yet.
    Retransmitted,
    /// Step 3: new segments were sent; no retransmission before the next acknowledgment.
    NewData,
}

/// The facts of an acknowledgment that the algorithm needs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FRtoAck {
    /// True if the connection uses SACK: §3.1 applies instead of §2.1.
    pub(crate) sack: bool,
    /// True if it cumulatively acknowledges new data.
    pub(crate) advances: bool,
    /// True if it covers everything that was sent before the timeout.
    pub(crate) covers_all: bool,
    /// True if it reports data that was sent after the timeout.
    pub(crate) covers_more: bool,
    /// True if it newly reports data by SACK.
    pub(crate) sacks: bool,
    /// True if it is a duplicate (RFC 5681 §2).
    pub(crate) duplicate: bool,
    /// True if there is new data that fits the peer's window.
    pub(crate) has_new: bool,
}

/// The action that follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FRtoVerdict {
    /// No action: wait for the next acknowledgment.
    Undecided,
    /// Send up to two new segments and no retransmission.
    SendNew,
    /// The timeout was genuine: retransmit in slow start.
    Conventional {
        /// Congestion window to start from, segments.
        segments: u32,
    },
    /// The timeout was spurious: the originals arrived.
    Spurious,
}

impl FRto {
    /// Runs step 2 or 3 for an acknowledgment after the timeout.
    pub(crate) fn on_ack(&mut self, ack: &FRtoAck) -> FRtoVerdict {
        match *self {
            Self::Off => FRtoVerdict::Undecided,
            Self::Retransmitted => self.step_2(ack),
            Self::NewData => self.step_3(ack),
        }
    }

    fn step_2(&mut self, ack: &FRtoAck) -> FRtoVerdict {
        if !ack.advances {
            // §2.1 2a: "If the acknowledgment is a duplicate ACK"; §3.1 2: "Stay in step 2 and wait".
            if ack.duplicate && !ack.sack {
                *self = Self::Off;
            }
            return FRtoVerdict::Undecided;
        }
        if ack.covers_all || !ack.has_new {
            *self = Self::Off;
            return FRtoVerdict::Undecided;
        }
        *self = Self::NewData;
        FRtoVerdict::SendNew
    }

    fn step_3(&mut self, ack: &FRtoAck) -> FRtoVerdict {
        let nothing = !ack.advances && !ack.sacks;
        if nothing && !ack.duplicate {
            return FRtoVerdict::Undecided;
        }
        *self = Self::Off;
        // §2.1 3a, §3.1 3a: "set the congestion window to no more than 3 * MSS".
        if nothing || (ack.sack && ack.covers_more) {
            return FRtoVerdict::Conventional { segments: 3 };
        }
        // §2.1 3b, §3.1 3b: it "acknowledges data that was not retransmitted after the timeout".
        FRtoVerdict::Spurious
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: FRtoAck = FRtoAck {
        sack: false,
        advances: false,
        covers_all: false,
        covers_more: false,
        sacks: false,
        duplicate: false,
        has_new: true,
    };
    const ADVANCES: FRtoAck = FRtoAck { advances: true, ..NONE };
    const DUPLICATE: FRtoAck = FRtoAck { duplicate: true, ..NONE };

    fn with_sack(ack: FRtoAck) -> FRtoAck {
        FRtoAck { sack: true, ..ack }
    }

    /// Runs the acknowledgments from step 2 on; returns the last verdict and the step reached.
    fn run(acks: &[FRtoAck]) -> (FRtoVerdict, FRto) {
        let mut f_rto = FRto::Retransmitted;
        let mut verdict = FRtoVerdict::Undecided;
        for ack in acks {
            verdict = f_rto.on_ack(ack);
        }
        (verdict, f_rto)
    }

    #[test]
    fn two_acknowledgments_that_advance_mean_a_spurious_timeout() {
        for sack in [false, true] {
            let ack = FRtoAck { sack, ..ADVANCES };
            assert_eq!(run(&[ack]), (FRtoVerdict::SendNew, FRto::NewData));
            assert_eq!(run(&[ack, ack]), (FRtoVerdict::Spurious, FRto::Off));
        }
        let sacks = with_sack(FRtoAck { sacks: true, duplicate: false, ..NONE });
        assert_eq!(run(&[with_sack(ADVANCES), sacks]), (FRtoVerdict::Spurious, FRto::Off));
    }

    #[test]
    fn step_2_ends_without_a_verdict() {
        for ack in
            [DUPLICATE, FRtoAck { covers_all: true, ..ADVANCES }, FRtoAck { has_new: false, ..ADVANCES }]
        {
            assert_eq!(run(&[ack]), (FRtoVerdict::Undecided, FRto::Off), "{ack:?}");
        }
        assert_eq!(run(&[with_sack(DUPLICATE)]), (FRtoVerdict::Undecided, FRto::Retransmitted));
    }

    #[test]
    fn step_3_ends_with_a_duplicate_or_a_report_of_new_data() {
        let real = (FRtoVerdict::Conventional { segments: 3 }, FRto::Off);
        assert_eq!(run(&[ADVANCES, DUPLICATE]), real);
        assert_eq!(run(&[with_sack(ADVANCES), with_sack(DUPLICATE)]), real);
        let more = with_sack(FRtoAck { sacks: true, covers_more: true, ..NONE });
        assert_eq!(run(&[with_sack(ADVANCES), more]), real);
    }

    #[test]
    fn what_is_neither_new_nor_a_duplicate_is_ignored() {
        assert_eq!(run(&[NONE]), (FRtoVerdict::Undecided, FRto::Retransmitted));
        assert_eq!(run(&[ADVANCES, NONE]), (FRtoVerdict::Undecided, FRto::NewData));
    }
}
