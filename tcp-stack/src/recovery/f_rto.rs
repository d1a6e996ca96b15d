//! Forward RTO-recovery (RFC 5682): was a timeout spurious?
//!
//! After a timeout only the first segment is sent again, then new data. What the next acknowledgment covers
//! tells whether the originals have arrived.

/// How far the algorithm has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FRto {
    /// It does not run: the recovery is a conventional one.
    Off,
    /// Step 2: the first segment was sent again, and is not acknowledged.
    Retransmitted,
    /// Step 3: new segments were let out; nothing is to be sent again before the next acknowledgment.
    NewData,
}

/// What an acknowledgment said.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FRtoAck {
    /// The connection uses SACK: §3.1 instead of §2.1.
    pub(crate) sack: bool,
    /// It acknowledged the first segment, or more of what was not acknowledged cumulatively.
    pub(crate) advances: bool,
    /// It covers everything that was sent before the timeout.
    pub(crate) covers_all: bool,
    /// It reports something that was sent after the timeout.
    pub(crate) covers_more: bool,
    /// It newly reports something by SACK.
    pub(crate) sacks: bool,
    /// It is a duplicate (RFC 5681 §2).
    pub(crate) duplicate: bool,
    /// There is new data, and the peer's window lets it out.
    pub(crate) has_new: bool,
}

/// What follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FRtoVerdict {
    /// Nothing yet.
    Undecided,
    /// Send up to two new segments, and nothing again.
    SendNew,
    /// The timeout was right: retransmit in slow start, from a congestion window of so many segments.
    Conventional {
        /// Segments of the congestion window.
        segments: u32,
    },
    /// The originals arrive: nothing was lost.
    Spurious,
}

impl FRto {
    /// Steps 2 and 3, for an acknowledgment after the timeout.
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

    /// Runs the acknowledgments from step 2 on; returns the last verdict and where it ends.
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
