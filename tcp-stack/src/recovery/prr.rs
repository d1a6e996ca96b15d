//! Proportional rate reduction (RFC 6937), with the slow-start reduction bound.

/// The state of one recovery; all values in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prr {
    /// RecoverFS: bytes in flight when the recovery began.
    recover_fs: u32,
    /// prr_delivered: bytes delivered since then. It cannot overflow: no window has 2^32 bytes.
    delivered: u32,
    /// prr_out: bytes sent since then.
    out: u32,
}

impl Prr {
    /// Begins a recovery with `flight_size` bytes in flight.
    pub(crate) const fn new(flight_size: u32) -> Self {
        Self { recover_fs: flight_size, delivered: 0, out: 0 }
    }

    /// Counts bytes sent, new or retransmitted.
    pub(crate) fn on_sent(&mut self, bytes: u32) {
        self.out = self.out.saturating_add(bytes);
    }

    /// Returns the bytes that may be in flight after an acknowledgment that delivered `delivered` bytes
    /// (DeliveredData).
    pub(crate) fn on_ack(&mut self, delivered: u32, pipe: u32, ssthresh: u32, mss: u32) -> u32 {
        self.delivered = self.delivered.saturating_add(delivered);
        let sndcnt = if pipe > ssthresh {
            // sndcnt = CEIL(prr_delivered * ssthresh / RecoverFS) - prr_out
            let share = u64::from(self.delivered).saturating_mul(u64::from(ssthresh));
            share.div_ceil(u64::from(self.recover_fs.max(1))).saturating_sub(u64::from(self.out))
        } else {
            // limit = MAX(prr_delivered - prr_out, DeliveredData) + MSS
            let banked = self.delivered.saturating_sub(self.out).max(delivered);
            let limit = u64::from(banked).saturating_add(u64::from(mss));
            limit.min(u64::from(ssthresh.saturating_sub(pipe)))
        };
        // The fast retransmit itself is always sent (RFC 6675 §5 (4.3)).
        let least = if self.out == 0 { u64::from(mss) } else { 0 };
        let sndcnt = u32::try_from(sndcnt.max(least)).unwrap_or(u32::MAX);
        pipe.saturating_add(sndcnt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 6937 §3's example: 20 segments in flight, the first lost, ssthresh 10. Every second of the 19
    /// acknowledgments releases a segment, and the recovery ends with 10 in flight.
    #[test]
    fn one_loss_spreads_the_reduction_over_the_round_trip() {
        let (mss, ssthresh) = (1000, 10_000);
        let mut prr = Prr::new(20_000);
        let mut pipe = 16_000;
        let mut sent = 0;
        for ack in 0..19 {
            if ack >= 3 {
                pipe -= mss;
            }
            // The three acknowledgments before the recovery count as delivered by the one that began it.
            if ack < 3 {
                continue;
            }
            let delivered = if ack == 3 { 4 * mss } else { mss };
            let allowed = prr.on_ack(delivered, pipe, ssthresh, mss);
            while pipe + mss <= allowed {
                prr.on_sent(mss);
                pipe += mss;
                sent += 1;
            }
        }
        assert!((9..=10).contains(&sent), "{sent}");
        assert!(pipe <= ssthresh, "{pipe}");
    }

    /// The second example: 15 of 20 lost; below ssthresh each acknowledgment releases two.
    #[test]
    fn heavy_loss_grows_back_like_slow_start() {
        let (mss, ssthresh) = (1000, 10_000);
        let mut prr = Prr::new(20_000);
        let mut pipe: u32 = 4_000;
        let mut out = alloc::vec::Vec::new();
        for _ in 0..3 {
            let allowed = prr.on_ack(mss, pipe, ssthresh, mss);
            let n = (allowed - pipe) / mss;
            prr.on_sent(n * mss);
            out.push(n);
            // The next acknowledgment removes one more from the network.
            pipe += n * mss - mss;
        }
        assert_eq!(out, [2, 2, 2]);
    }
}
